"""Bad input through the commands: one line says what to do, exit code 2, nothing is left."""

import json
import os
import re

import pytest

from jobs import train
from ramen_ray.orchestration.cluster import joining

DEEP = '{"a":' * 50_000 + "1" + "}" * 50_000


def _pipe(_):
    """Make what a shell makes of <(cat config.json)."""
    read, write = os.pipe()
    os.write(write, b'{"training": {"epochs": "many"}}')
    os.close(write)
    return f"/dev/fd/{read}"


CONFIGS = {
    "without end": (DEEP, "/c: .*JSON.*recursion"),
    "a list": ("[1]", "/c: "),
    "no such key": ('{"optimizer": {"lrr": 1}}', "optimizer.lrr"),
    "a number as a text": ('{"training": {"epochs": "3"}}', "training.epochs"),
    "a bad name": ('{"name": ".."}', "/c: .*name: '..' is not a valid name"),
    "a pipe": (_pipe, "training.epochs"),
    "a folder": (lambda file: file.parent, "Is a directory"),
    "none": (lambda file: file, "cannot read the config file .*/c: No such file"),
}
"""What is in the file, or what makes a file of that name; and what is said."""


@pytest.mark.parametrize("case", CONFIGS)
def test_config_files(case, run_here, tmp_path):
    given, message = CONFIGS[case]
    if callable(given):
        file = given(tmp_path / "c")
    else:
        file = tmp_path / "c"
        file.write_bytes(given if isinstance(given, bytes) else given.encode())
    _expect(run_here(train, "--config", file), message)


RUNS_CODE = {"AutoConfig": "own.C", "AutoModel": "own.M", "AutoTokenizer": ["own.T", "own.T"]}
BERT = '{"model_type": "bert"}'
OWN = json.dumps({"model_type": "own", "auto_map": RUNS_CODE})
OWN_TOKENIZER = json.dumps({"auto_map": RUNS_CODE, "tokenizer_class": "T"})
ENCODERS = {
    "without end": ({"config.json": DEEP}, "cannot load an encoder"),
    "no padding": ({"config.json": '{"model_type": "roberta", "pad_token_id": null}'}, "encoder'"),
    "its own code": ({"config.json": OWN}, "cannot load an encoder"),
    "modules without end": ({"config.json": BERT, "modules.json": DEEP}, "modules.json is no JSON"),
    "a tokenizer without end": (
        {"config.json": BERT, "tokenizer.json": DEEP},
        "cannot load a tokenizer",
    ),
    "its own tokenizer": (
        {"config.json": BERT, "tokenizer_config.json": OWN_TOKENIZER},
        "cannot load a tokenizer|has no",
    ),
}


NAMES = ["package:os.path/x", "package:..x/x", "x\0y"]


@pytest.mark.parametrize("case", [*ENCODERS, *NAMES])
def test_encoders(case, run_here, tmp_path, dataset_path, monkeypatch):
    files, message = ENCODERS.get(case, ({}, "encoder"))
    folder = tmp_path / "encoder"
    ran = tmp_path / "ran"
    folder.mkdir()
    for name, content in {**files, "own.py": f"open({str(ran)!r}, 'w')"}.items():
        (folder / name).write_text(content)
    arguments = ["tiny", "--dataset", dataset_path, "--output", tmp_path / "out"]
    arguments += ["--training.global-batch-size", 8]
    arguments += ["--encoder.pretrained", folder if case in ENCODERS else case]
    monkeypatch.setattr(joining, "start_ray", lambda **_: None)
    _expect(run_here(train, *arguments), message)
    assert list(tmp_path.iterdir()) == [folder]


def _expect(ended, message):
    code, printed = ended
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert (code, len(errors)) == (2, 1), printed
    assert "Traceback" not in printed
    assert re.search(message, errors[0]), printed
