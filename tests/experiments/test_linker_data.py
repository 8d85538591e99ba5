"""The data of a linker: edges become clicks, whichever queries are held out."""

from support import node_edges

from experiments.oak.linker_data import make_link_dataset
from ramen_ray.data.store.dataset import Dataset, write_dataset


def test_a_link_dataset_has_the_edges_as_clicks(dataset_path, tmp_path):
    handmade = Dataset(dataset_path)
    tables = {table: handmade.read(table) for table in handmade.tables}
    for split in ("validation", "test"):
        own = [[] if query % 4 == 1 else [query, query + 6] for query in range(12)]
        tables[f"edges/links/{split}_query"] = node_edges("query_id", own)
    parent = write_dataset(tmp_path / "handmade", tables, name="handmade")
    links = make_link_dataset(parent.path, tmp_path / "links", ["links"])
    assert links.read("ads")["text"].equals(parent.read("anchors/links")["text"])
    texts = {split: parent.read(f"queries/{split}")["text"].to_pylist() for split in parent.splits}
    expected: dict[str, dict[tuple[int, str], list[int]]] = {"train": {}, "test": {}}
    for side, split in (("query", "train"), ("test_query", "test")):
        for row in parent.read(f"edges/links/{side}").to_pylist():
            query = row["query_id"], texts[split][row["query_id"]]
            expected[split].setdefault(query, []).append(row["anchor_id"])
    found = {
        split: [(row["text"], row["ad_ids"]) for row in links.read(f"queries/{split}").to_pylist()]
        for split in ("train", "validation", "test")
    }
    assert found["test"] == [(text, ads) for (_, text), ads in expected["test"].items()]
    ours = [(text, sorted(ads)) for (_, text), ads in expected["train"].items()]
    assert sorted(found["train"] + found["validation"]) == sorted(ours)
    assert 0 < len(found["validation"]) < len(found["train"]) / 3
    assert links.metadata["links_of"]["anchor_sets"] == ["links"]
