"""Commands that are printed: folders that begin with a dash, and what takes less time."""

import shlex
import shutil

from jobs import describe, validate
from ramen_ray.config import overlay
from ramen_ray.errors import shown_path
from ramen_ray.presets import PRESETS
from ramen_ray.printed_commands import asking, cheaper_than


def _next(said):
    (line,) = (line for line in said.splitlines() if line.startswith("next:"))
    return shlex.split(line)[3:]


def test_folders_that_begin_with_a_dash_are_found_again(
    dataset_path, encoder_path, done, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(dataset_path, "-mine")
    words = _next(done(validate, "./-mine"))
    assert _next(done(describe, *words, "--encoder", encoder_path)) == ["--dataset", "./-mine"]
    out = asking(shown_path(tmp_path / "-out/runs/a"), "-out")
    assert out.endswith("--model ./-out/runs/a --output ./-out")


def test_a_transformer_on_cpus_names_what_is_sooner():
    transformer = PRESETS["minilm-6"]("foldoc")
    assert cheaper_than(transformer) == "python jobs/train.py bag-unidec --dataset foldoc"
    assert not cheaper_than(PRESETS["bag"]("foldoc"))
    assert not cheaper_than(overlay(transformer, {"workers.use_gpu": True}))
