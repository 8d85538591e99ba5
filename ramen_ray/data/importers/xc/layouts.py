"""Find the files in a folder of the extreme classification repository, in any of its layouts."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from ramen_ray.data.findings import error_at
from ramen_ray.data.importers.xc.texts import TextFile
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.schemas import ZERO_SHOT
from ramen_ray.naming import naming_fault


class FileNames(NamedTuple):
    """What a layout calls its files; matrices come as .txt or .npz."""

    train_text: str
    test_text: str
    ad_text: str
    train_clicks: str = "trn_X_Y"
    test_clicks: str = "tst_X_Y"


LAYOUTS = {
    "json": FileNames("trn.json.gz", "tst.json.gz", "lbl.json.gz"),
    "ngame": FileNames("trn.raw.txt", "tst.raw.txt", "lbl.raw.txt"),
    "renee": FileNames("trn_X.txt", "tst_X.txt", "Y.txt"),
    "oak": FileNames("raw_data/train.raw.txt", "raw_data/test.raw.txt", "raw_data/label.raw.txt"),
    "dexml": FileNames("raw/trn_X.txt", "raw/tst_X.txt", "raw/Y.txt", "Y.trn", "Y.tst"),
}
EXTRA_SPLITS = {"validation": "val", ZERO_SHOT: "zero"}
"""Splits that only this project has in the layout ``oak``, and their short names."""

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
    ads: Literal["all", "seen", "novel"] = "all"


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
    layout = _recognise(folder)
    names = LAYOUTS[layout]
    if layout == "dexml" and _find(folder, _matrix("Y.tst_zero")):
        ads, splits = _irene(folder)
    else:
        ads = _text(folder, layout, names.ad_text, with_content)
        splits = {
            "train": SplitFiles(
                _text(folder, layout, names.train_text, with_content),
                _clicks(folder, layout, names.train_clicks),
                _find(folder, ("filter_labels_train.txt", "trn_filter_labels.txt")),
            ),
            "test": SplitFiles(
                _text(folder, layout, names.test_text, with_content),
                _clicks(folder, layout, names.test_clicks),
                _find(folder, ("filter_labels_test.txt", "tst_filter_labels.txt")),
            ),
        }
        if layout == "oak":
            splits |= _extra_splits(folder)
    novel_ads = _find(folder, [NOVEL_ADS]) if layout == "oak" else None
    return XcFiles(layout, ads, splits, novel_ads, _graphs(folder))


def _recognise(folder: Path) -> str:
    found = [
        layout for layout, names in LAYOUTS.items() if _find(folder, _variants(names.train_text))
    ]
    if not found:
        expected = "".join(
            f"\n  {layout}: {', '.join(names[:3])}"
            + ("" if layout == "json" else f", {names[3]} and {names[4]} as .txt or .npz")
            for layout, names in LAYOUTS.items()
        )
        raise DatasetError(f"{folder} has no train texts of any known layout:{expected}")
    if len(found) > 1 and "json" not in found:
        files = " and ".join(LAYOUTS[layout].train_text for layout in found)
        raise error_at(
            folder, f"the layouts {' and '.join(found)} are mixed ({files})", advice=_KEEP_ONE
        )
    return found[0]


_KEEP_ONE = "leave the files of one of them in the folder"


def _irene(folder: Path) -> tuple[TextFile, dict[str, SplitFiles]]:
    """Find the files of a data set that is split into seen and novel ads (IRENE)."""

    def text(*names: str) -> TextFile:
        return TextFile(_need(folder, "dexml with novel ads", names))

    def clicks(name: str) -> Path:
        return _need(folder, "dexml with novel ads", _matrix(name))

    test_text = text("raw/tst_X.txt", "raw/tst_X_full.txt")
    zero_text = _find(folder, ["raw/tst_X_zero.txt"])
    splits = {
        "train": SplitFiles(
            text("raw/trn_X.txt"),
            clicks("Y.trn"),
            _find(folder, ["filter_labels_train.txt"]),
            ads="seen",
        ),
        "test": SplitFiles(
            test_text,
            clicks("Y.tst_full"),
            _find(folder, ["filter_labels_test_full.txt", "filter_labels_test.txt"]),
        ),
        ZERO_SHOT: SplitFiles(
            TextFile(zero_text) if zero_text else test_text,
            clicks("Y.tst_zero"),
            _find(folder, ["filter_labels_test_zero.txt"]),
            ads="novel",
        ),
    }
    return text("raw/Y.txt", "raw/Y_full.txt"), splits


def _extra_splits(folder: Path) -> dict[str, SplitFiles]:
    return {
        split: SplitFiles(
            _text(folder, "oak", f"raw_data/{split}.raw.txt", with_content=False),
            _clicks(folder, "oak", f"{short}_X_Y"),
            _find(folder, [f"filter_labels_{split}.txt"]),
        )
        for split, short in EXTRA_SPLITS.items()
        if _find(folder, [f"raw_data/{split}.raw.txt"])
    }


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
        graphs[name] = GraphFiles(_with_source_ids(path), edges)
    return graphs


def _text(folder: Path, layout: str, name: str, with_content: bool) -> TextFile:
    path = _need(folder, layout, _variants(name))
    return TextFile(path, with_content=with_content) if layout == "json" else _with_source_ids(path)


def _with_source_ids(path: Path) -> TextFile:
    source_ids = path.with_name(path.name.replace(".raw.txt", ".source_id.txt"))
    return TextFile(path, source_ids if source_ids != path and source_ids.is_file() else None)


def _clicks(folder: Path, layout: str, name: str) -> Path | None:
    return None if layout == "json" else _need(folder, layout, _matrix(name))


def _variants(name: str) -> list[str]:
    return [name, name.removesuffix(".gz")] if name.endswith(".gz") else [name]


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
