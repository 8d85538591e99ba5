"""The pages that users read: links lead somewhere, and tables of evidence add up."""

import re

import pytest
from support import ROOT, evidence, run_python

MOST_WORDS = 16_000
"""Of the README and docs together, so that they can be read."""
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("datasets/*/*.md")]


def _anchors(page):
    """Return the names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_can_be_read_in_an_hour():
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= MOST_WORDS


def test_links_lead_somewhere():
    lost = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if ":" not in link and not (
                target.exists() and (not anchor or anchor in _anchors(target))
            ):
                lost.append(f"{page.name}: {link}")
    assert not lost


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path):
    # strict: a page outside the menu, a lost link
    run_python("-m", "mkdocs", "build", "--site-dir", str(tmp_path))
    settings = (tmp_path / "reference" / "settings.html").read_text(encoding="utf-8")
    for said in ("--training.epochs", "Passes over the train queries.", "lambda-z.SET", "rdocs"):
        assert said in settings
    commands = (tmp_path / "reference" / "commands.html").read_text(encoding="utf-8")
    assert all(f'id="{job.stem}"' in commands for job in ROOT.glob("jobs/[a-z]*.py"))
    loaded = r"""<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//"""
    for page in tmp_path.glob("**/*.html"):
        assert not re.search(loaded, page.read_text(encoding="utf-8")), page


@pytest.mark.parametrize("name", ["results", "oak"])
def test_differences_are_those_of_the_rows(name):
    rows = evidence(name)
    percent = {(row["dataset"], row["variant"], row["metric"]): row["percent"] for row in rows}
    compared = [row for row in rows if row["over"]]
    assert compared
    for row in compared:
        base = percent.get((row["dataset"], row["over"], row["metric"]))
        difference = float(row["difference"])
        assert float(row["low"]) <= difference <= float(row["high"]), row
        if base:
            rounding = 0.0151
            assert abs(float(row["percent"]) - float(base) - difference) < rounding, row
