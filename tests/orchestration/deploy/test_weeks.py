"""A run on this week's data against the champion of last week's: catalogues and queries differ."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from stores import Store
from support import MAX_LENGTH, prepare_in_process, with_tables, write_rows

from jobs import promote
from ramen_ray.config import write_config
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import Splits, UserTables
from ramen_ray.presets import bag

WORDS = ("robin", "oak", "elm", "ship", "saw", "waltz", "wren", "pine", "brig", "rasp")
TEXTS = [f"{one} {other}" for one in WORDS for other in WORDS if one != other]
ENDED = 20
NEW = 15
METRICS = ("P@1", "R@10")


def _import(folder, ads, queries):
    """Import a week: query q clicks the ads of its own two words, in either order."""
    folder.mkdir(parents=True)
    numbers = {text: number for number, text in enumerate(TEXTS)}
    clicks = []
    for query in queries:
        one, other = TEXTS[query].split()
        clicked = (numbers[f"{one} {other}"], numbers[f"{other} {one}"])
        clicks += [(TEXTS[query], f"A{ad}") for ad in clicked if ad in ads]
    tables = UserTables(
        write_rows(folder / "clicks.csv", "query ad_id", clicks),
        ads=write_rows(folder / "ads.csv", "ad_id text", [(f"A{n}", TEXTS[n]) for n in ads]),
        splits=Splits(test_fraction=0.4, validation_fraction=0.1, seed=queries.start),
    )
    return import_tables(tables, folder / "dataset")


@pytest.fixture(scope="module")
def weeks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weeks")
    last = _import(folder / "1", range(len(TEXTS) - NEW), range(len(TEXTS) - NEW))
    return last, _import(folder / "2", range(ENDED, len(TEXTS)), range(5, len(TEXTS)))


@pytest.fixture(scope="module")
def stores(weeks, encoder_path, output, prepared_bag):
    made = []
    for number, week in enumerate(weeks):
        folder = output / f"week-{number}"
        data = prepare_in_process(week, folder, encoder_path, MAX_LENGTH, False)
        made.append(Store(output, data, encoder_path))
    return made


@pytest.fixture
def promoted(run_here, output):
    """Promotes a run under a name, if it is better; returns the code and what is printed."""
    return lambda name, run, *flags: run_here(
        promote, run, "--name", name, "--output", output, *flags
    )


def _clicked(week):
    """Return the ads, by the user's ids, that test queries have clicked, by text."""
    ids = {row["ad_id"]: row["source_id"] for row in week.read("ads").to_pylist()}
    rows = week.read("queries/test").to_pylist()
    return {row["text"]: {ids[ad] for ad in row["ad_ids"]} for row in rows}


def _oracle(store, run_ids, week, queries, ads):
    """Measure retrievers by a loop over what they answer of ``ads``, the champion last."""
    clicked = {text: all_ads & ads for text, all_ads in _clicked(week).items()}
    registry = store.registry
    found = {name: [] for name in METRICS}
    for run_id in run_ids:
        model = registry.load(f"models:/{registry.find_logged(run_id, None)[1]}")
        depth = len(model.ads)
        answers = model.answer(queries, depth).to_pylist()
        hits = {name: [] for name in METRICS}
        for query, answer in zip(queries, answers, strict=True):
            known = [ad for ad in answer["ad_ids"] if ad in ads]
            true = clicked[query]
            hits["P@1"].append(float(known[0] in true))
            if true:
                hits["R@10"].append(len(set(known[:10]) & true) / len(true))
        for name in METRICS:
            found[name].append(float(np.mean(hits[name])))
    return found


def test_retrievers_of_two_catalogues_are_compared_on_what_both_have(stores, weeks, promoted):
    last, this = stores
    champion = last.run(1.0, weeks[0].path)
    candidate = this.run(0.0, weeks[1].path)
    assert promoted("weekly", champion)[0] == 0
    code, printed = promoted("weekly", candidate, "--metric", "P@1")
    assert code in (0, 3), printed
    shared = {f"A{number}" for number in range(ENDED, len(TEXTS) - NEW)}
    trained = set(weeks[0].read("queries/train")["text"].to_pylist())
    tested = weeks[1].read("queries/test")["text"].to_pylist()
    new = [text for text in tested if text not in trained]
    known = [text for text in tested if text in trained]
    assert new
    assert known
    added = {f"A{number}" for number in range(len(TEXTS) - NEW, len(TEXTS))}
    asks_new = [text for text in new if added & _clicked(weeks[1])[text]]
    titles = [line for line in printed.splitlines() if line.startswith("on ")]
    assert titles == [
        f"on {len(new)} test queries of dataset, among the {len(shared)} ads that both have, that "
        "neither was trained on:",
        f"on {len(known)} that one of the two was trained on:",
        "on all of these queries, with all ads that each has:",
        f"on clicks on new ads, which the champion lacks, of {len(asks_new)} queries:",
    ]
    rows = [line.strip("│").split("│") for line in printed.splitlines() if line.startswith("│")]
    shown = {name: [row for row in rows if row[0].strip() == name] for name in METRICS}
    every = {f"A{number}" for number in range(len(TEXTS))}
    for place, (queries, ads) in enumerate(((new, shared), (known, shared), (tested, every))):
        measured = _oracle(last, (candidate, champion), weeks[1], queries, ads)
        for name in METRICS:
            cells = [float(cell) for cell in shown[name][place][1:3]]
            assert cells == pytest.approx([100 * one for one in measured[name]], abs=0.02), name
    assert "on " + titles[0][3:-1] in printed.splitlines()[-2], "it says what decided"


def test_another_dataset_can_decide_and_a_champion_whose_data_are_gone_is_compared(
    stores, weeks, promoted, tmp_path
):
    last, this = stores
    moved = _import(tmp_path / "gone", range(len(TEXTS) - NEW), range(len(TEXTS) - NEW))
    champion = last.run(0.5, moved.path)
    candidate = this.run(0.25, weeks[1].path)
    assert promoted("other", champion)[0] == 0
    moved.path.rename(tmp_path / "elsewhere")
    code, printed = promoted("other", candidate)
    assert (code, str(moved.path) in printed) == (2, True), printed
    allowed = "--allow-unknown-training"
    code, printed = promoted("other", candidate, allowed)
    assert code in (0, 3)
    assert str(moved.path) in printed
    _, printed = promoted("other", candidate, allowed, "--test", weeks[0].path)
    assert f"among the {len(TEXTS) - NEW - ENDED} ads that both have" in printed


def test_train_queries_that_are_clicked_later_too_do_not_decide(stores, weeks, promoted, tmp_path):
    this = stores[1]
    train, test = (weeks[1].read(f"queries/{split}").to_pylist() for split in ("train", "test"))
    again = [row | {"query_id": len(test) + number} for number, row in enumerate(train[:5])]
    later = pa.Table.from_pylist([*test, *again], weeks[1].schema("queries/test"))
    week = with_tables(weeks[1], tmp_path / "later", {"queries/test": later})
    assert promoted("later", this.run(2.5, week.path))[0] == 0
    _, printed = promoted("later", this.run(2.25, week.path))
    titles = [line for line in printed.splitlines() if line.startswith("on ")]
    assert titles == [
        "on the test split, that neither was trained on:",
        f"on {len(again)} that one of the two was trained on:",
    ]


@pytest.mark.parametrize("by", ["the champion", "the encoder that the candidate began with"])
def test_retrievers_are_not_compared_on_queries_that_one_was_trained_on(
    by, stores, weeks, promoted, tmp_path
):
    this = stores[1]
    train, test = (weeks[1].read(f"queries/{split}") for split in ("train", "test"))
    splits = {"queries/train": test, "queries/test": train}
    swapped = with_tables(weeks[1], tmp_path / "swapped", splits)
    champion = this.run(1.5, swapped.path if by == "the champion" else weeks[1].path)
    candidate = this.run(0.125, weeks[1].path)
    if by != "the champion":
        checkpoint = tmp_path / "checkpoint"
        checkpoint.mkdir()
        write_config(bag(str(swapped.path)), checkpoint / "config.json")
        made_from = json.dumps({"dataset": swapped.fingerprint})
        (checkpoint / "made_from.json").write_text(made_from)
        this.client.log_param(candidate, "encoder.pretrained", checkpoint / "encoder")
    name = by.split()[1]
    assert promoted(name, champion)[0] == 0
    code, printed = promoted(name, candidate)
    assert (code, "test queries" in printed) == (2, True), printed
    code, printed = promoted(name, candidate, "--force")
    assert (code, "by force: " in printed) == (0, True), printed


def test_ads_of_other_ids_are_found_by_their_texts(stores, weeks, promoted, tmp_path):
    this = stores[1]
    candidate = this.run(0.0625, weeks[1].path)
    ads = weeks[1].read("ads")
    place = ads.column_names.index("source_id")
    ids = ads.set_column(place, "source_id", pc.binary_join_element_wise("B", ads["source_id"], ""))
    texts = ids.set_column(1, "text", pc.binary_join_element_wise(ads["text"], "new", " "))
    for name, changed in (("ids", ids), ("texts", texts)):
        champion = this.run(1.25, with_tables(weeks[1], tmp_path / name, {"ads": changed}).path)
        assert promoted(name, champion)[0] == 0
        code, printed = promoted(name, candidate)
        if name == "ids":
            assert code in (0, 3)
            assert f"among the {len(ads)} ads that both have" in printed
        else:
            assert code == 2
            assert "version 1" in printed
