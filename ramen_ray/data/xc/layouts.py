"""Find the files in a folder of the extreme classification repository, in any of its layouts."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ramen_ray.data.findings import error_at
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.schemas import ZERO_SHOT
from ramen_ray.data.xc.text_files import TextFile
from ramen_ray.naming import naming_fault

AdColumns = Literal["all", "seen", "novel"]
"""Which ads are columns of a matrix; ``seen`` ads come before ``novel`` ones."""


class SplitNames(NamedTuple):
    """What a layout calls the files of a split, each by several names."""

    texts: tuple[str, ...]
    clicks: str | None  # without .txt or .npz; None if the JSON of the texts has the clicks
    filters: tuple[str, ...]
    ads: AdColumns = "all"


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
    splits = {
        "train": SplitNames(_packed_or_not(train), clicks[0], TRAIN_FILTERS),
        "test": SplitNames(_packed_or_not(test), clicks[1], TEST_FILTERS),
    }
    return Layout(_packed_or_not(ads), splits)


def _packed_or_not(name: str) -> tuple[str, ...]:
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

NOVEL_LABELS = "novel_labels.txt"
RESERVED = {"train", "test", "label", "trn", "tst", "lbl", *EXTRA_SPLITS}
"""Names that no anchor set can have: the layout uses these text files for queries and ads."""

_GRAPH_FILE = re.compile(r"(.+)_(trn|lbl)_X_Y\.(?:txt|npz)")
_SIDES = {"trn": "query", "lbl": "ad"}
_KEEP_ONE = "leave the files of one of them in the folder"


@dataclass(frozen=True)
class SplitFiles:
    """Files of one split; a zero-shot split without its own texts has those of the test split."""

    texts: TextFile
    clicks: Path | None  # query × ad matrix; None if the JSON of the texts has the clicks
    filters: Path | None  # pairs to drop from predictions
    ads: AdColumns


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
    novel_ads: Path | None
    graphs: dict[str, GraphFiles]


def find_files(folder: Path, with_content: bool) -> XcFiles:
    """Recognise the layout by its train texts and find all of its files.

    JSON is preferred, as the raw texts of other layouts were made from it. Raises a DatasetError if
    files are missing, or two match where one is expected.
    """
    if not folder.is_dir():
        raise DatasetError(f"there is no folder {folder}")
    recognised = name = _recognise(folder)
    layout = LAYOUTS[name]
    if name == "dexml" and _find(folder, _matrix("Y.tst_zero")):
        name, layout = "dexml with novel ads", IRENE
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
    novel_ads = _find(folder, [NOVEL_LABELS]) if name == "oak" else None
    return XcFiles(recognised, ads, splits, novel_ads, _graphs(folder))


def _texts(path: Path, with_content: bool = False) -> TextFile:
    if ".json" in path.suffixes:
        return TextFile(path, with_content=with_content)
    source_ids = path.with_name(path.name.replace(".raw.txt", ".source_id.txt"))
    return TextFile(path, source_ids if source_ids != path and source_ids.is_file() else None)


def _recognise(folder: Path) -> str:
    train_texts = {name: layout.splits["train"].texts for name, layout in LAYOUTS.items()}
    found = [name for name, texts in train_texts.items() if _find(folder, texts)]
    if not found:
        expected = ""
        for name, layout in LAYOUTS.items():
            train, test = layout.splits["train"], layout.splits["test"]
            expected += f"\n  {name}: {train.texts[0]}, {test.texts[0]}, {layout.ads[0]}"
            if train.clicks:
                expected += f", {train.clicks} and {test.clicks} as .txt or .npz"
        raise DatasetError(f"{folder} has no train texts of any known layout:{expected}")
    if len(found) > 1 and "json" not in found:
        files = " and ".join(train_texts[name][0] for name in found)
        message = f"the layouts {' and '.join(found)} are mixed ({files})"
        raise error_at(folder, message, advice=_KEEP_ONE)
    return found[0]


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
        texts = [f"raw_data/{name}.raw.txt", f"{name}.raw.txt"]
        is_variant = any(name.startswith(f"{other}_renee") for other in found)
        if is_variant and _find(folder, texts) is None:
            continue
        if name in RESERVED or naming_fault(name, dots=False):
            raise error_at(
                folder / f"{name}_{min(sides)}_X_Y",
                f"a graph cannot be named {name!r}",
                advice="rename its files; use letters, digits, '_' and '-'",
            )
        edges = {
            side: _need(folder, "graph", _matrix(f"{name}_{short}_X_Y"))
            for short, side in _SIDES.items()
            if short in sides
        }
        graphs[name] = GraphFiles(_texts(_need(folder, "graph", texts)), edges)
    return graphs


def _matrix(name: str) -> list[str]:
    return [f"{name}.txt", f"{name}.npz"]


def _need(folder: Path, layout: str, names: Iterable[str]) -> Path:
    found = _find(folder, names)
    if found is None:
        raise error_at(folder, f"{' or '.join(names)} is missing (layout {layout})")
    return found


def _find(folder: Path, names: Iterable[str]) -> Path | None:
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        listed = " and ".join(str(file.relative_to(folder)) for file in found)
        raise error_at(folder, f"{listed} both match", advice=_KEEP_ONE)
    return found[0] if found else None
