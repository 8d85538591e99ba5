"""Recipes of data that Python packages bring, on a few rows written by hand."""

import gzip
import json

import pytest
from written_out import clicked_pairs, column_of, edges_of

from aws import MODEL, build_aws
from phenotypes import build_phenotypes
from ramen_ray.data.store.dataset import DatasetError

ONTOLOGY = """format-version: 1.2

[Term]
id: HP:1
name: All

[Term]
id: HP:2
name: Renal cyst
def: "A cyst." [x]
is_a: HP:1 ! All

[Term]
id: HP:3
name: Gone
is_obsolete: true

[Term]
id: HP:4
name: Many renal cysts
is_a: HP:2 ! Renal cyst
is_a: HP:1 ! All

[Typedef]
id: part_of
name: part of
"""
COLUMNS = "disease_name\tqualifier\thpo_id\taspect"
ANNOTATED = [
    "Cystic kidney\t\tHP:4\tP",
    "Cystic kidney\tNOT\tHP:2\tP",
    "Cystic kidney\t\tHP:1\tI",
    'A "quoted\t\tHP:2\tP',
    'A "quoted\t\tHP:3\tP',
]


def test_diseases_ask_for_signs_and_every_sign_is_an_ad(tmp_path):
    (tmp_path / "hp.obo").write_text(ONTOLOGY)
    lines = ["#description: no row", COLUMNS, *ANNOTATED]
    (tmp_path / "phenotype.hpoa").write_text("\n".join(lines) + "\n")
    dataset = build_phenotypes(tmp_path, tmp_path / "made")
    assert clicked_pairs(dataset) == {
        ("Cystic kidney", "Many renal cysts"),
        ('A "quoted', "Renal cyst"),
    }
    assert sorted(column_of(dataset, "ads")) == ["All", "Many renal cysts", "Renal cyst"]
    assert edges_of(dataset, "kinds", "ad") == {
        ("Renal cyst", "All"),
        ("Many renal cysts", "Renal cyst"),
        ("Many renal cysts", "All"),
    }


def _write_model(source, version, about):
    members = {
        "VpcId": {"shape": "VpcIdentifier", "documentation": "<p>The <b>VPC</b>. It is one.</p>"},
        "Tags": {"shape": "Tag"},
    }
    model = {
        "operations": {
            "Create": {
                "input": {"shape": "CreateInput"},
                "output": {"shape": "Nothing"},
                "documentation": f"<p>{about} a VPC. More.</p>",
            },
            "Untold": {"input": {"shape": "CreateInput"}},
        },
        "shapes": {
            "CreateInput": {"members": members},
            "Nothing": {},
            "Tag": {"members": {"Key": {"shape": "TagKey"}}},
        },
    }
    file = source / "ec2" / version / MODEL
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(json.dumps(model).encode()))


def test_operations_ask_for_their_fields_and_inner_fields_are_never_clicked(tmp_path):
    _write_model(tmp_path / "data", "2015-01-01", "Makes")
    _write_model(tmp_path / "data", "2016-11-15", "Creates")
    dataset = build_aws(tmp_path / "data", tmp_path / "made")
    query = "Creates a VPC."
    fields = ("vpc id: The VPC .", "tags")
    assert clicked_pairs(dataset) == {(query, field) for field in fields}
    assert sorted(column_of(dataset, "ads")) == ["key", "tags", "vpc id: The VPC ."]
    assert edges_of(dataset, "types", "ad") == {
        ("vpc id: The VPC .", "vpc identifier"),
        ("tags", "tag"),
        ("key", "tag key"),
    }


@pytest.mark.parametrize("build", [build_aws, build_phenotypes])
def test_an_empty_source_is_refused_by_name(build, tmp_path):
    with pytest.raises(DatasetError, match=str(tmp_path)):
        build(tmp_path, tmp_path / "made")
    assert not any(tmp_path.iterdir())
