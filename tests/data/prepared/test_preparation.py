"""The prepared arrays against a naive reading of the tables."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import support
from support import (
    MAX_LENGTH,
    errors_in,
    node_edges,
    prepare_in_process,
    query_table,
    rows_of,
    shares_of,
    tables_in,
    text_table,
)
from transformers import AutoTokenizer

from ramen_ray.config import ConfigError, overlay
from ramen_ray.data.prepared import csr
from ramen_ray.data.prepared.folder import TextFigures
from ramen_ray.data.prepared.stages import join_parts
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset, write_metadata
from ramen_ray.data.store.schemas import JUDGEMENTS, SPLITS, schema_of
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity, read_test_queries
from ramen_ray.method.model.pretrained import EncoderError
from ramen_ray.orchestration.prepare.pipeline import text_findings
from ramen_ray.orchestration.run.build import build_sampler, build_training_data
from ramen_ray.orchestration.run.inputs import check_vocabulary
from ramen_ray.presets import tiny

SETS = ("links", "topics")


def _arrays(prepared):
    files = sorted(prepared.path.rglob("*.npy"))
    loaded = {str(file.relative_to(prepared.path)): np.load(file) for file in files}
    return {name: (str(array.dtype), array.tolist()) for name, array in loaded.items()}


def _tokens_by_id(dataset, table, encoder, special):
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    rows = sorted(dataset.read(table).to_pylist(), key=lambda row: next(iter(row.values())))
    return [tokenizer.encode(row["text"], add_special_tokens=special) for row in rows]


@pytest.mark.parametrize("special", [True, False])
def test_token_tables_hold_every_text(special, request, dataset_path, encoder_path):
    prepared = request.getfixturevalue("prepared" if special else "prepared_bag")
    dataset = Dataset(dataset_path)
    tables = {"ads": prepared.ads, **{f"anchors/{name}": prepared.anchors(name) for name in SETS}}
    tables |= {f"queries/{split}": prepared.queries[split] for split in SPLITS}
    for name, table in tables.items():
        texts = _tokens_by_id(dataset, name, encoder_path, special)
        order = prepared.query_ids.tolist() if name == "queries/train" else range(len(texts))
        found = [table.gather(np.array([row])).tolist() for row in range(len(table))]
        assert found == [texts[row] for row in order]
    assert abs(np.corrcoef(prepared.query_ids, range(60))[0, 1]) < 0.5, "a shuffle of the ids"


@pytest.mark.parametrize("split", SPLITS)
def test_clicks_are_the_sorted_ads_of_each_query(prepared, dataset_path, split):
    rows = Dataset(dataset_path).read(f"queries/{split}").to_pylist()
    by_id = {row["query_id"]: sorted(row["ad_ids"]) for row in rows}
    order = prepared.query_ids.tolist() if split == "train" else range(len(rows))
    assert rows_of(prepared.clicks[split]) == [by_id[query] for query in order]


def _with_weights(path, folder, weight_of):
    """Copy a dataset and give each click a weight."""
    shutil.copytree(path, folder)
    for split in SPLITS:
        rows = pq.read_table(folder / f"queries/{split}.parquet")
        weights = [
            [weight_of(row["query_id"], ad) for ad in row["ad_ids"]] for row in rows.to_pylist()
        ]
        column = pa.array(weights, pa.list_(pa.float32()))
        pq.write_table(rows.append_column("weights", column), folder / f"queries/{split}.parquet")
    return folder


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("side", ["query", "ad"])
def test_edges_are_the_sorted_anchors_with_their_weights(prepared, dataset_path, name, side):
    edges = {}
    for row in Dataset(dataset_path).read(f"edges/{name}/{side}").to_pylist():
        edges.setdefault(row[f"{side}_id"], {})[row["anchor_id"]] = row["weight"]
    order = prepared.query_ids.tolist() if side == "query" else range(40)
    expected = [dict(sorted(edges.get(node, {}).items())) for node in order]
    found = prepared.edges(name, side)
    assert rows_of(found) == [list(row) for row in expected]
    assert any(not row for row in expected)
    if name == "topics":
        assert found.cumulative_weights is None
    else:
        for shares, row in zip(shares_of(found), expected, strict=True):
            assert shares == pytest.approx([w / sum(row.values()) for w in row.values()])


@pytest.mark.parametrize("num_blocks", [1, 7])
def test_weights_queries_without_clicks_and_edges_of_held_out_queries_change_nothing_else(
    prepared, dataset_path, encoder_path, tmp_path, num_blocks, monkeypatch
):
    monkeypatch.setattr(csr, "ENTRIES_PER_BATCH", num_blocks)
    bare = {0, 7, 58, 59}

    def weight_of(query, ad):
        return 1 + query % 3 + ad / 4

    path = _with_weights(dataset_path, tmp_path / "odd", weight_of)
    train = pq.read_table(path / "queries" / "train.parquet")
    for number, column in enumerate(train.column_names[2:], 2):
        lists = [[] if q in bare else row for q, row in enumerate(train[column].to_pylist())]
        train = train.set_column(number, column, pa.array(lists, train[column].type))
    pq.write_table(train, path / "queries" / "train.parquet")
    links = [[] if query % 3 == 1 else [query, (7 * query + 3) % 30] for query in range(12)]
    of_held_out = {"validation": links, "test": links[::-1]}
    for split, of_queries in of_held_out.items():
        table = f"edges/links/{split}_query"
        rows = node_edges("query_id", of_queries).cast(schema_of(table))
        pq.write_table(rows, path / f"{table}.parquet")
    shutil.rmtree(path / "filters")
    write_metadata(path, Dataset(path).metadata)
    assert not errors_in(Dataset(path))
    found = _prepare(path, encoder_path, tmp_path / "out", num_blocks=num_blocks)
    arrays, plain = _arrays(found), _arrays(prepared)
    changed = {name for name in arrays if arrays[name] != plain.get(name)}
    assert changed == {
        *(f"clicks/train/{name}.npy" for name in ("indptr", "indices", "cumulative_weights")),
        *(f"clicks/{split}/traffic.npy" for split in of_held_out),
        *(f"filters/{split}.npy" for split in of_held_out),
        "train_click_counts.npy",
    }

    whole = zip(found.query_ids.tolist(), rows_of(prepared.clicks["train"]), strict=True)
    clicks = [(query, [] if query in bare else ads) for query, ads in whole]
    weights = [[weight_of(query, ad) for ad in ads] for query, ads in clicks]
    assert rows_of(found.clicks["train"]) == [ads for _, ads in clicks]
    assert rows_of(found.weighted_clicks) == [ads for _, ads in clicks]
    assert shares_of(found.weighted_clicks) == [[w / sum(row) for w in row] for row in weights]
    assert found.clicked_queries.tolist() == [row for row, (_, ads) in enumerate(clicks) if ads]
    drawn = found.weighted_clicks.draw(np.arange(60), np.full(60, 0.999))
    assert drawn.tolist() == [max(ads, default=-1) for _, ads in clicks]
    trained = build_training_data(tiny(), found)
    build_sampler(overlay(tiny(), {"training.global_batch_size": 56}), found, trained)
    with pytest.raises(DatasetError, match=r"training\.global_batch_size 60"):
        build_sampler(overlay(tiny(), {"training.global_batch_size": 60}), found, trained)
    with pytest.raises(ConfigError, match=r"base\.num_positives 50"):
        build_sampler(overlay(tiny(), {"base.num_positives": 50}), found, trained)

    for split in of_held_out:
        queries = Dataset(path).read(f"queries/{split}").sort_by("query_id")
        traffic = [sum(row) for row in queries["weights"].to_pylist()]
        measured = GroundTruth.from_prepared(found, split, Propensity()).traffic
        assert measured.tolist() == found.traffic(split).tolist() == traffic
        assert found.filters(split).shape == (0, 2)
        assert found.judgements(split) is None
    _, ground_truth = read_test_queries(Dataset(path), Propensity())
    assert ground_truth.traffic.tolist() == traffic, "of the test split"


def test_filters_are_the_pairs_of_the_table(prepared, dataset_path):
    for split in ("validation", "test"):
        rows = Dataset(dataset_path).read(f"filters/{split}").to_pylist()
        assert prepared.filters(split).tolist() == [list(row.values()) for row in rows]


def test_judgements_are_of_query_rows_and_means_over_the_sources_that_are_asked_for(
    dataset_path, encoder_path, tmp_path
):
    tables = tables_in(dataset_path)
    rows = [(5, 7, "human", 1.0), (5, 7, "teacher", 0.5), (2, 3, "teacher", 0.25)]
    for split in SPLITS:
        columns = dict(zip(JUDGEMENTS.names, zip(*rows, strict=True), strict=True))
        tables[f"judged/{split}"] = pa.table(columns, JUDGEMENTS)
    dataset = write_dataset(tmp_path / "judged", tables, name="judged")
    assert dataset.fingerprint != Dataset(dataset_path).fingerprint
    prepared = prepare_in_process(dataset, tmp_path / "p", str(encoder_path), MAX_LENGTH, True)
    row_of = {"train": prepared.query_ids.tolist().index}
    expected = {
        (): {(5, 7): 0.75, (2, 3): 0.25},
        ("human",): {(5, 7): 1.0},
        ("human", "teacher"): {(5, 7): 0.75, (2, 3): 0.25},
    }
    for split in SPLITS:
        for sources, grades in expected.items():
            judged = prepared.judgements(split, sources)
            columns = (judged.queries.tolist(), judged.ads.tolist(), judged.grades.tolist())
            assert {(query, ad): grade for query, ad, grade in zip(*columns, strict=True)} == {
                (row_of.get(split, int)(query), ad): grade for (query, ad), grade in grades.items()
            }
    assert prepared.metadata["statistics"]["num_test_judgements"] == 3
    assert prepared.metadata["statistics"]["num_test_low_judgements"] == 1
    with pytest.raises(DatasetError, match=r"'me'.*human, teacher"):
        prepared.judgements("test", ["me"])
    by_rows = GroundTruth.from_prepared(prepared, "test", Propensity())
    answers = np.tile(np.arange(9), (len(by_rows.traffic), 1))
    for ground_truth in (by_rows, read_test_queries(dataset, Propensity())[1]):
        assert ground_truth.metrics(answers)["bad@5"] == 1.0, "of query 2's ad 3 alone"
        assert ground_truth.metrics(answers)["bad@10"] == 0.5
        without_3 = ground_truth.among(np.arange(40) != 3)
        assert without_3.metrics(answers)["bad@10"] == 0.0


def _prepare(path, encoder, folder, **options):
    return prepare_in_process(Dataset(path), folder, str(encoder), MAX_LENGTH, True, **options)


@pytest.mark.parametrize("num_blocks", [2, 7, 1000])
def test_rows_of_equal_weights_in_any_order_parts_and_blocks_give_the_same_arrays(
    prepared, dataset_path, encoder_path, tmp_path, num_blocks
):
    path = _with_weights(dataset_path, tmp_path / "parts", lambda query, ad: 1.0)
    draw = np.random.default_rng(0)
    for table in [t for t in Dataset(path).tables if not t.startswith("filters/")]:
        file = path / f"{table}.parquet"
        rows = pq.read_table(file)
        rows = rows.take(draw.permutation(len(rows)))
        file.unlink()
        file.mkdir()
        third = len(rows) // 3
        for number, part in enumerate([rows[:third], rows[:0], rows[third:]]):
            pq.write_table(part, file / f"part-{number}.parquet")
    found = _prepare(path, encoder_path, tmp_path / "out", num_blocks=num_blocks)
    assert _arrays(found) == _arrays(prepared)
    assert prepared.weighted_clicks.cumulative_weights is None


def test_a_join_that_a_lost_machine_interrupted_is_done_again(
    prepared, dataset_path, encoder_path, tmp_path, monkeypatch
):
    def join_twice(parts, folder, *rest):
        join_parts(parts, folder, *rest)
        for half_written in folder.rglob("tokens/*/*.npy"):
            half_written.write_bytes(b"half")
        join_parts(parts, folder, *rest)

    monkeypatch.setattr(support, "join_parts", join_twice)
    assert _arrays(_prepare(dataset_path, encoder_path, tmp_path / "out")) == _arrays(prepared)


def _prepared_of(queries, ads, encoder, folder, special):
    """Prepare a dataset whose splits have the same two queries, for the first ads."""
    tables = {f"queries/{split}": query_table(queries, [[0], [1]]) for split in SPLITS}
    tables["ads"] = text_table("ad_id", ads)
    dataset = write_dataset(folder / "birds", tables, name="birds")
    return prepare_in_process(dataset, folder / "prepared", str(encoder), MAX_LENGTH, special)


@pytest.mark.parametrize("special", [True, False])
def test_unknown_tokens_and_texts_of_the_same_tokens_are_counted(special, encoder_path, tmp_path):
    thai = ["\u0e40\u0e08\u0e49\u0e2d", "\u0e19\u0e01"]
    long = "robin" + " old" * MAX_LENGTH
    texts = ["robin", "Robin", " ".join(thai), f"robin {thai[1]}", long, f"{long} rare"]
    found = _prepared_of(["old robin", "robin"], texts, encoder_path, tmp_path, special)
    tokenizer = AutoTokenizer.from_pretrained(encoder_path)
    rows = [
        tokenizer(text, truncation=True, max_length=MAX_LENGTH, add_special_tokens=special)
        for text in texts
    ]
    own = [token for row in rows for token in row["input_ids"][special : -1 if special else None]]
    unknown = own.count(tokenizer.unk_token_id)
    assert unknown == 3
    assert found.text_figures["ads"] == TextFigures(unknown / len(own), 2 / len(texts))
    assert found.text_figures["queries/train"].share_unknown == 0
    check_vocabulary(tiny(), found)
    for finding, share in zip(
        text_findings(found.text_figures), (3 / len(own), 1 / 3), strict=True
    ):
        assert f"ads: {share:.1%}" in str(finding)


def test_texts_in_a_language_the_vocabulary_lacks_are_refused(encoder_path, prepared, tmp_path):
    check_vocabulary(tiny(), prepared)
    thai = ["\u0e40\u0e08\u0e49\u0e2d", "\u0e19\u0e01 robin"]
    found = _prepared_of(thai, ["robin", "old robin"], encoder_path, tmp_path, special=True)
    config = overlay(tiny(), {"encoder.pretrained": str(encoder_path)})
    with pytest.raises(EncoderError, match=r"encoder\.pretrained .*67%.* queries/train"):
        check_vocabulary(config, found)
