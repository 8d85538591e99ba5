"""The data of a linker: edges become clicks, whichever queries are held out."""

from support import node_edges, tables_in
from written_out import clicked_pairs, edges_of

from experiments.oak.linker_data import make_link_dataset
from ramen_ray.data.store.dataset import write_dataset
from ramen_ray.data.store.schemas import SPLITS


def test_a_link_dataset_has_the_edges_as_clicks(dataset_path, tmp_path):
    tables = tables_in(dataset_path)
    for split in ("validation", "test"):
        own = [[] if query % 4 == 1 else [query, query + 6] for query in range(12)]
        tables[f"edges/links/{split}_query"] = node_edges("query_id", own)
    parent = write_dataset(tmp_path / "handmade", tables, name="handmade")
    links = make_link_dataset(parent.path, tmp_path / "links", ["links"])
    assert links.read("ads")["text"].equals(parent.read("anchors/links")["text"])
    clicked = {split: clicked_pairs(links, split) for split in SPLITS}
    assert clicked["test"] == edges_of(parent, "links", "test_query")
    assert clicked["train"] | clicked["validation"] == edges_of(parent, "links", "query")
    assert 0 < links.num_rows("queries/validation") < links.num_rows("queries/train") / 3
