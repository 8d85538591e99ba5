"""Build a dataset of what programs ask of AWS from the PyPI package botocore.

Query: what an operation does, the first sentence of its documentation. Ads: the fields of all
structures, by name and first sentence; those that the operation takes or returns are clicked, the
fields of what lies within them are never. Anchor set ``types``: the types of the fields.

    pip download --no-deps botocore==1.44.5
    unzip botocore-1.44.5-*.whl 'botocore/data/*'
    python datasets/build/aws.py --source botocore/data --output aws
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command import run_recipe
from corpus import AnchorSet, Corpus, build_tables, split_by_hash
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset

LICENCE = "Apache License 2.0"
SOURCE = "botocore (the descriptions of AWS's services)"
MODEL = "service-2.json.gz"
MOST_WORDS = 24
MOST_FIELDS = 500
"""A type of more fields, such as a string, says nothing of them."""


def build_aws(source: Path, output: Path) -> Dataset:
    """Build the dataset from botocore's folder ``data``; or a DatasetError."""
    models = list(_models(source))
    if not models:
        raise DatasetError(f"{source} has no SERVICE/VERSION/{MODEL}; it is botocore's folder data")
    return write_dataset(
        output, build_tables(build_corpus(models)), name="aws", source=SOURCE, licence=LICENCE
    )


def _models(source: Path) -> Iterator[dict[str, Any]]:
    """Read the latest model of each service."""
    latest = {file.parent.parent: file for file in sorted(source.glob(f"*/*/{MODEL}"))}
    for file in latest.values():
        yield json.loads(gzip.decompress(file.read_bytes()))


def build_corpus(models: list[dict[str, Any]]) -> Corpus:
    """Read operations, fields and types; those of the same text are one."""
    clicks: dict[str, set[str]] = {}
    fields: set[str] = set()
    types_of: dict[str, set[str]] = {}
    for model in models:
        shapes = model["shapes"]
        texts_of: dict[str, set[str]] = {}
        for name, shape in shapes.items():
            for field, described in shape.get("members", {}).items():
                about = _first_sentence(described)
                text = f"{_words(field)}: {about}" if about else _words(field)
                texts_of.setdefault(name, set()).add(text)
                types_of.setdefault(text, set()).add(_words(described["shape"]))
            fields |= texts_of.get(name, set())
        for operation in model["operations"].values():
            ends = [operation[end]["shape"] for end in ("input", "output") if end in operation]
            if query := _first_sentence(operation):
                clicked = (texts_of.get(end, set()) for end in ends)
                clicks.setdefault(query, set()).update(*clicked)
    counts = Counter(name for types in types_of.values() for name in types)
    telling = {name: name for name, count in counts.items() if count <= MOST_FIELDS}
    graph = AnchorSet(telling, {text: types & telling.keys() for text, types in types_of.items()})
    return Corpus(
        query_texts={query: query for query in clicks},
        ad_texts={text: text for text in fields},
        clicks=clicks,
        split_of={query: split_by_hash(query) for query in clicks},
        anchor_sets={"types": graph},
        further_ads=fields,
    )


def _first_sentence(described: dict[str, Any]) -> str:
    """Return the first words of a documentation, without its marks."""
    plain = " ".join(re.sub(r"<[^>]+>", " ", described.get("documentation", "")).split())
    return " ".join(re.split(r"(?<=[.:]) ", plain)[0].split()[:MOST_WORDS])


def _words(name: str) -> str:
    """Split CamelCase."""
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)).lower() or name


if __name__ == "__main__":
    run_recipe(build_aws, __doc__)
