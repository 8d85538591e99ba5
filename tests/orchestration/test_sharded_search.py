"""Ads in shards that actors hold: a search of all, and what is made with it."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from ray.util.placement_group import placement_group
from support import NUM_CPUS, best_by_a_sort, tables_in

from ramen_ray.config import overlay, write_config
from ramen_ray.data.arrays import map_array
from ramen_ray.data.store.dataset import DatasetError, write_dataset
from ramen_ray.data.store.schemas import JUDGEMENTS
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.retrieval import shards
from ramen_ray.method.retrieval.shards import embedded_shards
from ramen_ray.method.retrieval.shortlists import write_shortlists
from ramen_ray.orchestration.background.from_checkpoints import (
    SHORTLISTS_FILE,
    ShortlistMining,
)
from ramen_ray.orchestration.cluster.resources import no_placement_group_left
from ramen_ray.orchestration.evaluate import evaluate_checkpoint
from ramen_ray.orchestration.sharded_search import put_together, search_shards

pytestmark = pytest.mark.slow

K = 30


@pytest.fixture
def few_ads(monkeypatch):
    """Let shards have 16 ads; returns the size to ask for."""
    monkeypatch.setattr(shards, "ADS_PER_PRODUCT", 16)
    return 1e-9


@pytest.fixture
def embeddings(tmp_path):
    """2,500 queries and 3,000 ads of small whole numbers, so that many are equal, in a file."""
    draw = np.random.default_rng(3)
    queries, ads = (draw.integers(-2, 3, (rows, 12)).astype(np.float32) for rows in (2500, 3000))
    np.save(tmp_path / "embeddings.npy", np.concatenate([queries, ads]))
    return queries, ads


@pytest.mark.parametrize("held", [0, NUM_CPUS], ids=["two at once", "without"])
def test_queries_stream_through_all_shards_with_the_cpus_that_are_free(
    cluster, embeddings, tmp_path, held
):
    file = tmp_path / "embeddings.npy"
    three = embedded_shards(file, 2500, 1e-6)
    assert len(three) == 3
    with no_placement_group_left():
        if held:
            ray.get(placement_group([{"CPU": held}]).ready())
        blocks = search_shards(three, file, 2500, K, 1)
        found = put_together(blocks, 2500, K)
    for some, expected in zip(found, best_by_a_sort(*embeddings, K), strict=True):
        assert some.tolist() == expected.tolist()
    assert [*tmp_path.iterdir()] == [file]


def test_a_checkpoint_is_evaluated_in_shards_as_without(
    cluster, small_run, encoder_path, few_ads, tmp_path
):
    checkpoint = tmp_path / "checkpoint"
    DualEncoder(build_bag(encoder_path)).save(checkpoint, 16)
    changes = {"encoder.kind": "bag", "encoder.max_length": 16}
    found = {}
    for size in (few_ads, 1.0):
        config = overlay(small_run, {**changes, "workers.gb_per_shard": size})
        write_config(config, checkpoint / "config.json")
        file = tmp_path / f"{size}.parquet"
        metrics = evaluate_checkpoint(checkpoint, "test", config.dataset, file)
        found[size] = metrics, pq.read_table(file)
    in_shards, whole = found.values()
    assert in_shards[0] == whole[0]
    assert in_shards[1].equals(whole[1])


def test_judgements_of_the_sources_that_are_asked_for_measure_a_checkpoint(
    cluster, small_run, dataset_path, encoder_path, tmp_path
):
    queries, ads = np.divmod(np.arange(480), 40)
    grades = (queries + ads) % 3 / 2
    tables = tables_in(dataset_path)
    sources = np.repeat(["human", "teacher"], 480)
    judged = [*np.tile([queries, ads], 2), sources, np.append(grades, 0 * grades)]
    tables["judged/test"] = pa.table(judged, JUDGEMENTS.names)
    dataset = str(write_dataset(tmp_path / "judged", tables, name="judged").path)
    DualEncoder(build_bag(encoder_path)).save(tmp_path / "model", 16)
    changes = {"encoder.kind": "bag", "encoder.max_length": 16, "dataset": dataset}
    write_config(overlay(small_run, changes), tmp_path / "model" / "config.json")
    file = tmp_path / "found.parquet"
    for by, share in ((("human",), 1), ((), 0.5)):
        metrics = evaluate_checkpoint(tmp_path / "model", "test", dataset, file, judged_by=by)
        answers = [row for row in pq.read_table(file).to_pylist() if row["rank"] <= 5]
        shown = [40 * int(row["query_id"]) + int(row["ad_id"]) for row in answers]
        bad = share * grades[shown] < 0.5
        assert metrics["bad@5"] == pytest.approx(bad.mean())
        assert metrics["judged@5"] == 1.0
    with pytest.raises(DatasetError, match="'me'"):
        evaluate_checkpoint(tmp_path / "model", "test", dataset, judged_by=["me"])


def test_shortlists_of_shards_are_those_of_all_ads(
    cluster, prepared_bag, encoder_path, few_ads, tmp_path
):
    model = DualEncoder(build_bag(encoder_path))
    made = tmp_path / "made"
    model.save(tmp_path / "model", 16)
    made.mkdir()
    mining = ShortlistMining(prepared_bag.path, 12, False, 1, gb_per_shard=few_ads)
    assert mining(tmp_path / "model", made) == {}
    assert [file.name for file in made.iterdir()] == [SHORTLISTS_FILE]
    write_shortlists(model, prepared_bag, 12, tmp_path / "whole.npy")
    in_shards = map_array(made / SHORTLISTS_FILE)
    assert in_shards.tolist() == map_array(tmp_path / "whole.npy").tolist()
