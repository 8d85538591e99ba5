"""Find the files in a folder of the extreme classification repository, in any of its layouts."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from ramen_ray.data.findings import error_at
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.schemas import ZERO_SHOT
from ramen_ray.data.xc.texts import TextFile
from ramen_ray.naming import naming_fault

Ads = Literal["all", "seen", "novel"]


class SplitNames(NamedTuple):
    """What a layout calls a split's files, each by several names; matrices are .txt or .npz.

    JSON of the texts has the clicks too. The other fields are those of :class:`SplitFiles`.
    """

    texts: tuple[str, ...]
    clicks: str | None
    filters: tuple[str, ...]
    ads: Ads = "all"


class Layout(NamedTuple):
    """What a layout calls the texts of ads, and its splits; all but train and test are optional."""

    ads: tuple[str, ...]
    splits: dict[str, SplitNames]


TRAIN_FILTERS = "filter_labels_train.txt", "trn_filter_labels.txt"
TEST_FILTERS = "filter_labels_test.txt", "tst_filter_labels.txt"
EXTRA_SPLITS = {"validation": "val", ZERO_SHOT: "zero"}
"""Splits that only this project has in the layout ``oak``, and their short names."""


def _layout(
    train: str, test: str, ads: str, clicks: tuple[str | None, str | None] = ("trn_X_Y", "tst_X_Y")
) -> Layout:
    """Describe a layout of two splits."""
    splits = {
        "train": SplitNames(_variants(train), clicks[0], TRAIN_FILTERS),
        "test": SplitNames(_variants(test), clicks[1], TEST_FILTERS),
    }
    return Layout(_variants(ads), splits)


def _variants(name: str) -> tuple[str, ...]:
    """Name a file that may be compressed or not."""
    return (name, name.removesuffix(".gz")) if name.endswith(".gz") else (name,)


LAYOUTS = {
    "json": _layout("trn.json.gz", "tst.json.gz", "lbl.json.gz", (None, None)),
    "ngame": _layout("trn.raw.txt", "tst.raw.txt", "lbl.raw.txt"),
    "renee": _layout("trn_X.txt", "tst_X.txt", "Y.txt"),
    "oak": _layout("raw_data/train.raw.txt", "raw_data/test.raw.txt", "raw_data/label.raw.txt"),
    "dexml": _layout("raw/trn_X.txt", "raw/tst_X.txt", "raw/Y.txt", ("Y.trn", "Y.tst")),
}
for _split, _short in EXTRA_SPLITS.items():
    LAYOUTS["oak"].splits[_split] = SplitNames(
        (f"raw_data/{_split}.raw.txt",), f"{_short}_X_Y", (f"filter_labels_{_split}.txt",)
    )
NOVEL = "dexml with novel ads"
IRENE = Layout(
    ("raw/Y.txt", "raw/Y_full.txt"),
    {
        "train": SplitNames(("raw/trn_X.txt",), "Y.trn", TRAIN_FILTERS[:1], "seen"),
        "test": SplitNames(
            ("raw/tst_X.txt", "raw/tst_X_full.txt"),
            "Y.tst_full",
            ("filter_labels_test_full.txt", "filter_labels_test.txt"),
        ),
        ZERO_SHOT: SplitNames(
            ("raw/tst_X_zero.txt",), "Y.tst_zero", ("filter_labels_test_zero.txt",), "novel"
        ),
    },
)
"""The layout ``dexml`` of data that are split into seen and novel ads."""

NOVEL_ADS = "novel_labels.txt"
RESERVED = {"train", "test", "label", "trn", "tst", "lbl", *EXTRA_SPLITS}
"""Names that no anchor set can have: the layout uses these text files for queries and ads."""

_GRAPH_FILE = re.compile(r"(.+)_(trn|lbl)_X_Y\.(?:txt|npz)")
_SIDES = {"trn": "query", "lbl": "ad"}


@dataclass(frozen=True)
class SplitFiles:
    """Files of one split.

    Attributes:
        texts: the queries' texts; a zero-shot split without its own has those of the test split.
        clicks: query × ad matrix; None if the JSON of the texts has the clicks.
        filters: pairs to drop from predictions.
        ads: which ads are columns of the matrix; ``seen`` ads come before ``novel`` ones.
    """

    texts: TextFile
    clicks: Path | None
    filters: Path | None = None
    ads: Ads = "all"


@dataclass(frozen=True)
class GraphFiles:
    """Files of one graph: its anchors' texts and node × anchor matrices by side."""

    anchors: TextFile
    edges: dict[str, Path]


@dataclass(frozen=True)
class XcFiles:
    """All files of a folder that the import reads."""

    layout: str
    ads: TextFile
    splits: dict[str, SplitFiles]
    novel_ads: Path | None = None
    graphs: dict[str, GraphFiles] = field(default_factory=dict)


def find_files(folder: Path, with_content: bool) -> XcFiles:
    """Recognise the layout by its train texts and find all of its files.

    JSON files are preferred, as the raw texts of other layouts were made from them.

    Args:
        folder: a data set's folder.
        with_content: whether the text of a JSON object is its title and content.

    Raises:
        DatasetError: files are missing, or two files match where one is expected.
    """
    if not folder.is_dir():
        raise DatasetError(f"there is no folder {folder}")
    recognised = name = _recognise(folder)
    layout = LAYOUTS[name]
    if name == "dexml" and _find(folder, _matrix("Y.tst_zero")):
        name, layout = NOVEL, IRENE
    splits: dict[str, SplitFiles] = {}
    for split, names in layout.splits.items():
        has_texts = _find(folder, names.texts) is not None
        if split in EXTRA_SPLITS and not has_texts and layout is not IRENE:
            continue
        if split == ZERO_SHOT and not has_texts:
            texts = splits["test"].texts
        else:
            texts = _texts(_need(folder, name, names.texts), with_content)
        clicks = None if names.clicks is None else _need(folder, name, _matrix(names.clicks))
        splits[split] = SplitFiles(texts, clicks, _find(folder, names.filters), names.ads)
    ads = _texts(_need(folder, name, layout.ads), with_content)
    novel_ads = _find(folder, [NOVEL_ADS]) if name == "oak" else None
    return XcFiles(recognised, ads, splits, novel_ads, _graphs(folder))


def _texts(path: Path, with_content: bool) -> TextFile:
    if ".json" in path.suffixes:
        return TextFile(path, with_content=with_content)
    source_ids = path.with_name(path.name.replace(".raw.txt", ".source_id.txt"))
    return TextFile(path, source_ids if source_ids != path and source_ids.is_file() else None)


def _recognise(folder: Path) -> str:
    train_texts = {name: layout.splits["train"].texts for name, layout in LAYOUTS.items()}
    found = [name for name, texts in train_texts.items() if _find(folder, texts)]
    if not found:
        expected = "".join(
            f"\n  {name}: {', '.join([*(one.texts[0] for one in two), layout.ads[0]])}"
            + (f", {two[0].clicks} and {two[1].clicks} as .txt or .npz" if two[0].clicks else "")
            for name, layout in LAYOUTS.items()
            if (two := [layout.splits["train"], layout.splits["test"]])
        )
        raise DatasetError(f"{folder} has no train texts of any known layout:{expected}")
    if len(found) > 1 and "json" not in found:
        files = " and ".join(train_texts[name][0] for name in found)
        raise error_at(
            folder, f"the layouts {' and '.join(found)} are mixed ({files})", advice=_KEEP_ONE
        )
    return found[0]


_KEEP_ONE = "leave the files of one of them in the folder"


def _graphs(folder: Path) -> dict[str, GraphFiles]:
    """Find the graphs by their matrices; variants of a graph that have no texts are not read.

    Edges of test queries (``*_tst_X_Y``) are not read: training must not see them.
    """
    found: dict[str, set[str]] = {}
    for file in sorted(folder.iterdir()):
        if match := _GRAPH_FILE.fullmatch(file.name):
            found.setdefault(match[1], set()).add(match[2])
    graphs = {}
    for name, sides in found.items():
        texts = _find(folder, [f"raw_data/{name}.raw.txt", f"{name}.raw.txt"])
        if texts is None and any(name.startswith(f"{other}_renee") for other in found):
            continue
        if name in RESERVED or naming_fault(name, dots=False):
            raise error_at(
                folder / f"{name}_{min(sides)}_X_Y",
                f"a graph cannot be named {name!r}",
                advice="rename its files; use letters, digits, '_' and '-'",
            )
        path = _need(folder, "graph", [f"raw_data/{name}.raw.txt", f"{name}.raw.txt"])
        edges = {
            side: _need(folder, "graph", _matrix(f"{name}_{short}_X_Y"))
            for short, side in _SIDES.items()
            if short in sides
        }
        graphs[name] = GraphFiles(_texts(path, with_content=False), edges)
    return graphs


def _matrix(name: str) -> list[str]:
    return [f"{name}.txt", f"{name}.npz"]


def _need(folder: Path, layout: str, names: Iterable[str]) -> Path:
    names = list(names)
    found = _find(folder, names)
    if found is None:
        message = f"{' or '.join(names)} is missing (layout {layout})"
        raise error_at(folder, message)
    return found


def _find(folder: Path, names: Iterable[str]) -> Path | None:
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        listed = " and ".join(str(file.relative_to(folder)) for file in found)
        raise error_at(folder, f"{listed} both match", advice=_KEEP_ONE)
    return found[0] if found else None
