r"""Import a folder of the extreme classification (XC) repository, or export a dataset as one.

    python datasets/build/xc.py import --source LF-AmazonTitles-131K --output titles-131k
    python datasets/build/xc.py export --dataset datasets/foldoc --output foldoc-xc

JSON and the layouts of ngame, Renee, OAK and DEXML are read, with graphs, and so are IRENE's splits
into seen and novel ads. An export has the layout of OAK, and validation queries beside it, which an
import reads back. All texts are in memory at once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from corpus import hash_fraction
from ramen_ray.command_line import parse_settings, run_job
from ramen_ray.config import Section
from ramen_ray.data.arrays import Int64s, to_lists
from ramen_ray.data.findings import error_at
from ramen_ray.data.store.dataset import Dataset, DatasetError, DatasetWriter, new_dataset
from ramen_ray.data.store.same_texts import fold
from ramen_ray.data.store.schemas import ZERO_SHOT
from ramen_ray.long_work import logged_progress
from ramen_ray.naming import dataset_name
from xc_export import export_xc
from xc_files import ROWS_AT_ONCE, read_matrix
from xc_folder import Folder, Nodes, Split


class Import(Section):
    """Import a folder of the XC repository, in any of its layouts, with its graphs."""

    source: Path
    """Folder with the data set's files."""
    output: Path
    """Dataset directory to write; must not exist."""
    name: str | None = None
    """Name of the data set; by default that of the folder."""
    text: Literal["title", "title+content"] | None = None
    """A JSON object's text; by default title if the name contains "titles", else title+content."""
    encoding: str = "utf-8"
    """Encoding of raw texts, such as latin-1."""
    validation_fraction: float = 0.1
    """Share of the train queries to hold out, in (0, 1), if there is no validation split."""
    seed: int = 0
    """Seed of the choice of held-out queries."""

    def run(self) -> str:
        """Import the folder; returns what to say."""
        with logged_progress(f"reading {self.source}"):
            dataset = import_xc(self)
        return f"wrote {dataset.name} to {dataset.path}"


class Export(Section):
    """Write a dataset directory as files of the XC repository."""

    dataset: Path
    """Dataset directory to read."""
    output: Path
    """Folder to write; must not exist."""

    def run(self) -> str:
        """Write the files; returns what to say."""
        with logged_progress(f"writing {self.output}"):
            export_xc(Dataset(self.dataset), self.output)
        return f"wrote {self.output}"


def import_xc(settings: Import) -> Dataset:
    """Import a folder; a DatasetError names the file and row of what is wrong.

    Published splits stay as they are. Nodes without text, held-out queries without ads, and edges
    of test queries are left out. Queries of the same text are held out together.
    """
    source = settings.source.absolute()
    if not 0 < settings.validation_fraction < 1:
        raise DatasetError(f"--validation-fraction {settings.validation_fraction} is not in (0, 1)")
    name = dataset_name(settings.name, source)
    folder = Folder(source, settings.encoding, _with_content(settings.text, name))
    ads, splits = folder.ads(), folder.splits()
    chosen = _chosen_queries(splits, ads, settings)
    layout = f"XC files in the layout {folder.layout}"
    about: dict[str, Any] = {"source": layout, **propensity_constants(name)}
    with new_dataset(settings.output, name=name, **about) as writer:
        writer.write("ads", _numbered(ads, ads.filled, "ad_id"))
        for split, lines in chosen.items():
            published = splits[split if split in splits else "train"]
            writer.write(f"queries/{split}", _query_rows(published, lines, ads))
            if split != "train" and len(published.filters):
                writer.write(f"filters/{split}", _filter_rows(published, lines, ads))
        if ZERO_SHOT in splits:
            novel = np.arange(folder.num_seen, len(ads.texts))
            ad_ids = _new_ids(ads.filled, len(ads.texts))[novel]
            writer.write("novel_ads", pa.table({"ad_id": ad_ids[ad_ids >= 0]}))
        nodes = {
            "query": (chosen["train"], len(splits["train"].nodes.texts)),
            "ad": (ads.filled, len(ads.texts)),
        }
        for graph in folder.graphs():
            _write_graph(writer, folder, graph, nodes)
    return Dataset(settings.output)


def _with_content(text: str | None, name: str) -> bool:
    return text == "title+content" if text else "titles" not in name.lower()


def propensity_constants(name: str) -> dict[str, float]:
    """Return the A and B of Jain et al. (2016) that the XC repository gives to some data sets."""
    name = name.lower()
    if "amazon" in name:
        return {"propensity_a": 0.6, "propensity_b": 2.6}
    if "wiki" in name and "wikiseealso" not in name:
        return {"propensity_a": 0.5, "propensity_b": 0.4}
    return {}


def _chosen_queries(splits: dict[str, Split], ads: Nodes, settings: Import) -> dict[str, Int64s]:
    """Choose the lines of each split's queries; hold some out of the train split if need be."""
    chosen = {}
    for split, published in splits.items():
        lines = published.nodes.filled
        chosen[split] = lines if split == "train" else lines[_have_ads(published, ads)[lines]]
    if "validation" not in splits:
        train, lines = splits["train"], chosen["train"]
        texts = fold(pa.array([train.nodes.texts[line] for line in lines], pa.string())).to_pylist()
        share = np.array([hash_fraction(str(settings.seed), text) for text in texts])
        is_held_out = (share < settings.validation_fraction) & _have_ads(train, ads)[lines]
        held_out = {text for text, is_out in zip(texts, is_held_out, strict=True) if is_out}
        chosen["train"] = lines[[text not in held_out for text in texts]]
        chosen["validation"] = lines[is_held_out]
    for split, lines in chosen.items():
        published = splits.get(split, splits["train"])
        if not _have_ads(published, ads)[lines].any():
            message = f"no query with text and ads is left for the split {split!r}"
            raise error_at(published.nodes.path, message)
    return chosen


def _have_ads(split: Split, ads: Nodes) -> NDArray[np.bool_]:
    """(lines,) whether each query has a click on an ad with text."""
    return np.diff(split.clicks[:, ads.filled].indptr) > 0


def _numbered(nodes: Nodes, lines: Int64s, id_column: str) -> Iterator[pa.Table]:
    """Yield the texts of some lines, numbered from 0."""
    for start in range(0, len(lines), ROWS_AT_ONCE):
        chosen = lines[start : start + ROWS_AT_ONCE]
        ids = np.arange(start, start + len(chosen))
        columns = {id_column: ids, "text": [nodes.texts[line] for line in chosen]}
        if nodes.source_ids is not None:
            columns["source_id"] = [nodes.source_ids[line] for line in chosen]
        yield pa.table(columns)


def _query_rows(split: Split, lines: Int64s, ads: Nodes) -> Iterator[pa.Table]:
    clicks = split.clicks[lines][:, ads.filled]
    for rows in _numbered(split.nodes, lines, "query_id"):
        first = rows["query_id"][0].as_py()
        chosen = clicks[first : first + len(rows)]
        lengths = np.diff(chosen.indptr)
        rows = rows.append_column("ad_ids", to_lists(chosen.indices, lengths))
        if np.any(clicks.data != 1):
            rows = rows.append_column("weights", to_lists(chosen.data, lengths))
        yield rows


def _filter_rows(split: Split, lines: Int64s, ads: Nodes) -> pa.Table:
    query_ids = _new_ids(lines, len(split.nodes.texts))[split.filters[:, 0]]
    ad_ids = _new_ids(ads.filled, len(ads.texts))[split.filters[:, 1]]
    is_kept = (query_ids >= 0) & (ad_ids >= 0)
    return pa.table({"query_id": query_ids[is_kept], "ad_id": ad_ids[is_kept]})


def _write_graph(
    writer: DatasetWriter, folder: Folder, name: str, nodes: dict[str, tuple[Int64s, int]]
) -> None:
    """Write a graph; ``nodes`` has, by side, the lines of the nodes, and the number of all."""
    anchors, matrices = folder.graph(name)
    writer.write(f"anchors/{name}", _numbered(anchors, anchors.filled, "anchor_id"))
    for side, file in matrices.items():
        lines, num_lines = nodes[side]
        matrix = read_matrix(file, (num_lines, len(anchors.texts)))[lines][:, anchors.filled]
        ids = np.repeat(np.arange(len(lines)), np.diff(matrix.indptr))
        edges = {f"{side}_id": ids, "anchor_id": matrix.indices, "weight": matrix.data}
        if matrix.nnz:
            writer.write(f"edges/{name}/{side}", pa.table(edges))


def _new_ids(lines: Int64s, num_lines: int) -> Int64s:
    """Return (num_lines,) each line's place in ``lines``; -1 if it is not among them."""
    ids = np.full(num_lines, -1, dtype=np.int64)
    ids[lines] = np.arange(len(lines))
    return ids


COMMANDS: dict[str, type[Import | Export]] = {"import": Import, "export": Export}


def main() -> None:
    """Do what the first word names."""
    print(parse_settings(COMMANDS, str(__doc__)).run())


if __name__ == "__main__":
    run_job(main)
