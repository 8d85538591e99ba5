"""A retriever's ads as a catalogue has them: some come, some change their text, some go."""

from pathlib import Path
from typing import Any

import pytest
from stores import Store

from jobs import index, promote
from ramen_ray.tracking.registry import Registry

QUERIES = ["robin nest", "oak", "ship", "saw"]


def _ads(store: Store, uri: str) -> dict[str, str]:
    own = Registry(store.uri).load(uri).ads
    return dict(zip(own.ids.to_pylist(), own.texts.to_pylist(), strict=True))


def _answers(store: Store, uri: str, top_k: int) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = Registry(store.uri).load(uri).answer(QUERIES, top_k).to_pylist()
    return answers


def _write(file: Path, ads: dict[str, str]) -> Path:
    file.write_text("ad_id,text\n" + "".join(f"{ad},{text}\n" for ad, text in ads.items()))
    return file


def test_a_retriever_gets_exactly_the_ads_of_a_catalogue(
    store, dataset_path, run_here, done, tmp_path
):
    to = ("--output", store.output)
    champion, first = "models:/catalogue@champion", "models:/catalogue/1"
    done(promote, store.run(0.0, dataset_path), "--name", "catalogue", *to)
    before = _ads(store, champion)
    ids = list(before)
    wanted = {ad: before[ad] for ad in ids[5:]} | {ids[7]: "a robin of glass", "N1": "new oak ship"}
    file = _write(tmp_path / "catalogue.csv", wanted)
    printed = done(index, "--model", champion, "--sync", file, *to)
    said = f"models:/catalogue/2 has {len(wanted)} ads: 1 new, 1 with another text, 5 removed\n"
    assert printed.startswith(said)
    assert _ads(store, champion) == wanted

    # what has stayed is found in the same order, with the same scores, as if nothing had gone
    unchanged = {ad for ad, text in wanted.items() if before.get(ad) == text}
    for old, new in zip(
        _answers(store, first, len(before)), _answers(store, champion, len(wanted)), strict=True
    ):
        scores = (dict(zip(one["ad_ids"], one["scores"], strict=True)) for one in (old, new))
        of_old, of_new = ({ad: of[ad] for ad in of if ad in unchanged} for of in scores)
        assert of_new == pytest.approx(of_old, abs=1e-6)
        assert list(new["scores"]) == sorted(new["scores"], reverse=True)

    printed = done(index, "--model", champion, "--sync", file, *to)
    assert printed.startswith(f"{champion} has {len(wanted)} ads: nothing to change\n")

    ended = tmp_path / "ended.csv"
    ended.write_text(f"ad_id\nN1\n{ids[0]}\n{ids[9]}\n")
    added = _write(tmp_path / "added.csv", {"N1": "another oak", "N2": "a new saw"})
    words = ("--remove", ended, "--ads", added)
    printed = done(index, "--model", champion, *words, *to)
    said = f"models:/catalogue/3 has {len(wanted)} ads: 2 new, 2 removed, 1 to be removed were not"
    assert printed.startswith(said)
    last = {ad: text for ad, text in wanted.items() if ad not in ("N1", ids[9])}
    assert _ads(store, champion) == last | {"N1": "another oak", "N2": "a new saw"}
    code, printed = run_here(promote, store.run(0.0, dataset_path), "--name", "catalogue", *to)
    assert code in (0, 3), printed
    assert "among the 34 ads that both have" in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give --ads, --remove or --sync"),
        (["--sync", "{file}", "--remove", "{file}"], "leave out --ads and --remove"),
        (["--remove", "{file}"], "names all ads; a retriever needs one"),
        (["--remove", "{most}"], "{most} would remove 38 of 40 ads; is it whole?"),
        (["--sync", "{cut}"], "{cut} would remove 38 of 40 ads; is it whole?"),
        (["--ads", "{file}"], "40 ids are in use or repeated: "),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    flags, message, store, logged_retriever, refused, done, tmp_path
):
    ads = _ads(store, logged_retriever)
    files = {
        "file": _write(tmp_path / "all.csv", ads),
        "cut": _write(tmp_path / "cut.csv", dict([*ads.items()][:2])),
        "most": _write(tmp_path / "most.csv", dict([*ads.items()][2:])),
    }
    words = [word.format(**files) for word in flags]
    to = ("--model", logged_retriever, "--output", store.output)
    assert message.format(**files) in refused(index, *to, *words)
    if "{cut}" in flags or "{most}" in flags:
        printed = done(index, *to, *words, "--allow-lost-ads")
        assert " has 2 ads: 38 removed" in printed
