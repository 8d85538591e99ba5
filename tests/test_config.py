"""The configuration tree, its overlays and files, and the command line that fills it."""

import errno
import os
import re
import shutil
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, another_value, run_config_of

from ramen_ray.command_line import parse_with_run_config, run_job
from ramen_ray.config import (
    WITHOUT_GRAPH,
    ConfigError,
    EncoderConfig,
    LossConfig,
    RunConfig,
    flatten,
    overlay,
    read_config,
    shown_dataset,
    write_config,
)
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.run.identity import experiment_hash
from ramen_ray.orchestration.run.inputs import check_sets
from ramen_ray.orchestration.tune.ablation import variants_of
from ramen_ray.presets import PRESETS, on_dataset, with_base

positive = st.integers(1, 1000)
floats = st.floats(1e-6, 10)
changes_strategy = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 99),
        "name": st.none() | st.from_regex(r"\w[\w.-]{0,24}", fullmatch=True),
        "dataset": st.text(min_size=1),
        "encoder.kind": st.sampled_from(["transformer", "bag"]),
        "encoder.num_layers": st.none() | positive,
        "optimizer.lr": floats,
        "optimizer.warmup_fraction": st.floats(0, 1),
        "optimizer.max_gradient_norm": st.none() | floats,
        "loss.softmax_weighting": st.booleans(),
        "regularization.lambda_x.links": floats,
        "regularization.lambda_x.hyper_link": floats,
        "regularization.lambda_z.links": floats,
        "training.epochs": positive,
        "workers.num_workers": st.sampled_from([1, 2, 4]),
    },
)
PLAIN = RunConfig(encoder=EncoderConfig(pretrained="an/encoder"))


@given(changes_strategy)
def test_overlay_sets_exactly_the_named_keys(changes):
    before = PLAIN
    after = overlay(before, changes)
    assert flatten(after) == {**flatten(before), **changes}
    assert overlay(before, flatten(after)) == after
    assert before == PLAIN


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimizer.lrr", 1.0),
        ("optimiser", {"lr": 1.0}),
        ("optimizer.lr", float("nan")),
        ("optimizer", 3),
        ("encoder.kind.x", 1),
        ("regularization.lambda_x.links", -1.0),
        ("name", "../other"),
    ],
)
def test_an_unknown_key_or_a_bad_value_is_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)}: .+$"):
        overlay(PLAIN, {key: value})


def test_all_that_is_wrong_is_named_at_once():
    with pytest.raises(ConfigError, match=r"optimizer\.lr: .*training\.epochs: .*extra: "):
        overlay(PLAIN, {"optimizer.lr": -1, "training.epochs": 0, "extra": 1})


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_presets_are_complete_and_read_back_from_their_file(preset, tmp_path):
    file = tmp_path / "config.json"
    config = overlay(PRESETS[preset](), {"name": "naïve-1", "encoder.num_layers": 2})
    assert overlay(PLAIN, flatten(config)) == config
    write_config(config, file)
    assert read_config(file) == config


def test_a_built_in_dataset_is_named_and_a_folder_of_that_name_is_a_path():
    found = overlay(PLAIN, {"dataset": "debian"})
    assert found.dataset == str(ROOT / "datasets" / "debian")
    assert shown_dataset(found.dataset) == "debian"
    assert overlay(PLAIN, {"dataset": "./debian"}).dataset == "./debian"
    assert shown_dataset("elsewhere/debian") == "elsewhere/debian"


def test_the_experiment_hash_sees_every_setting_but_where_a_run_runs():
    weights = {"regularization.lambda_x.links": 0.1, "regularization.lambda_z.links": 0.1}
    config = overlay(PRESETS["tiny"](), weights)
    known = experiment_hash(config, "data")
    assert known == experiment_hash(overlay(config, {}), "data")
    assert known != experiment_hash(config, "other data")
    own = {
        "name": "x",
        "index.kind": "flat",
        "base.refresh_mode": "asynchronous",
        "base.order": "clustered",
        "base.hard_negatives": "shortlists",
        "training.sampling": "clicks",
        "base.loss": "supcon",
        "base.heads": "classifier",
        "optimizer.decay": "cosine",
        "classifier.unclicked": "own",
        "local_folder": "local",
        "encoder.pooling": "cls",
        "encoder.query_prompt": "query: ",
        "encoder.ad_prompt": "ad: ",
        "judged.sources": ("human",),
    }
    same = {
        key
        for key, value in flatten(config).items()
        if experiment_hash(overlay(config, {key: own.get(key) or another_value(value)}), "data")
        == known
    }
    workers = {key for key in flatten(config) if key.startswith("workers.")}
    how = {"dataset", "name", "output", "local_folder", "experiment", "allow_changed"}
    assert same == {*how, *workers}


def _parse(*arguments):
    return run_config_of(arguments)


def test_flags_change_a_preset_as_an_overlay_does():
    found = _parse(
        *("tiny", "--optimizer.lr", "0.25", "--training.epochs=3", "--workers.use-gpu"),
        *("--regularization.lambda-x.links", "0.5", "--regularization.lambda-z.categories", "0"),
        *("--walk.enabled", "--walk.restart-probability", "0.6"),
    )
    changes = {
        "optimizer.lr": 0.25,
        "training.epochs": 3,
        "workers.use_gpu": True,
        "regularization.lambda_x.links": 0.5,
        "regularization.lambda_z.categories": 0,
        "walk.enabled": True,
        "walk.restart_probability": 0.6,
    }
    assert found == overlay(PRESETS["tiny"](), changes)
    assert _parse("--seed", "7") == overlay(PRESETS["bag-unidec"](), {"seed": 7})


def test_an_anchor_set_is_named_with_either_dash():
    for name in ("hyper_link", "hyper-link"):
        config = _parse("lf-wikiseealsotitles-320k", f"--regularization.lambda-z.{name}", "2.5")
        assert config.regularization.lambda_z == {"hyper_link": 2.5, "category": 1.0}


def test_flags_change_a_saved_configuration(tmp_path):
    saved = overlay(PRESETS["bag"]("debian"), {"seed": 4, "loss.margin": 0.1})
    write_config(saved, tmp_path / "config.json")
    assert _parse("--config", str(tmp_path / "config.json")) == saved
    found = _parse("--config", str(tmp_path / "config.json"), "--seed", "5")
    assert found == overlay(saved, {"seed": 5})


@pytest.mark.parametrize(
    ("preset", "word"),
    [("bag", "--dataset {}"), ("bag-unidec", "--dataset={}"), ("ramen-ance", "--dataset {}")],
)
def test_an_unknown_dataset_gets_the_recipe_from_every_preset(preset, word, dataset_path, tmp_path):
    one_sided = shutil.copytree(dataset_path, tmp_path / "mine")
    file = one_sided / "edges" / "topics" / "ad.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)
    found = _parse(preset, *word.format(one_sided).split(), "--regularization.lambda-x.topics", "1")
    graph = found.regularization
    assert found.dataset == str(one_sided)
    assert graph.adaptive
    assert graph.lambda_x == {"topics": 1}
    assert graph.lambda_z == pytest.approx({"links": 3.0 if preset == "bag-unidec" else 0.3})
    with pytest.raises(ConfigError, match="topics"):
        _parse(preset, "--dataset", str(one_sided), "--regularization.lambda-z.topics", "1")
    wrong = overlay(found, {"regularization.lambda_z.topics": 1})
    with pytest.raises(ConfigError, match=r"lambda_z\.topics"):
        check_sets(wrong, Dataset(found.dataset))


def test_sets_that_are_named_keep_their_weight_on_other_data(dataset_path, tmp_path):
    weights = {"regularization.lambda_x": {}, "regularization.lambda_z": {"links": 0.7, "x": 1}}
    write_config(overlay(PRESETS["tiny"](), weights), tmp_path / "config.json")
    graph = _parse(
        "--config", str(tmp_path / "config.json"), "--dataset", str(dataset_path)
    ).regularization
    assert (graph.lambda_x, graph.lambda_z) == ({}, {"links": 0.7})
    base = overlay(PRESETS["tiny"](), WITHOUT_GRAPH)
    assert not on_dataset(base, str(dataset_path)).regularization.lambda_z


@pytest.mark.parametrize("base", ["depsl", "unidec"])
@pytest.mark.parametrize("encoder", ["bag", "minilm", "minilm-6"])
def test_a_base_has_the_same_constants_wherever_it_is_named(encoder, base, tmp_path):
    plain = PRESETS[encoder]("debian")
    found = _parse(encoder, "--dataset", "debian", "--base.kind", base)
    assert found == with_base(plain, {"base.kind": base})
    assert found == variants_of(plain, (base,))[f"{base}-ramen"].config
    assert base == "depsl" or found == _parse(f"{encoder}-unidec", "--dataset", "debian")
    assert found.optimizer.lr == plain.optimizer.lr / 2
    lambda_z = {name: 10 * most for name, most in plain.regularization.lambda_z.items()}
    assert found.regularization.lambda_z == pytest.approx(lambda_z)
    assert _parse(encoder, "--base.kind", base, "--optimizer.lr", "1").optimizer.lr == 1
    write_config(found, tmp_path / "config.json")
    back = _parse("--config", str(tmp_path / "config.json"), "--base.kind", "in_batch")
    lists = {"base.double_cluster_size_at": 0, "judged.sources": 0}
    assert flatten(back) | lists == pytest.approx(flatten(plain) | lists)
    assert _parse(encoder, "--base.loss", "supcon").optimizer.lr == plain.optimizer.lr / 2


def test_sets_as_published_are_off_unless_named():
    arguments = ("tiny", "--dataset", "foldoc")
    strict = dict.fromkeys(("links", "categories", "similar"), 0.3)
    assert _parse(*arguments).regularization.lambda_z == strict
    found = _parse(*arguments, "--regularization.lambda-z.links-published", "0.2")
    assert found.regularization.lambda_z == {**strict, "links_published": 0.2}


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EROFS])
def test_a_file_that_the_system_refuses_is_told_with_what_to_do(number, refused):
    def job():
        raise OSError(number, os.strerror(number), "edges/indptr.npy")

    error = refused(SimpleNamespace(main=job))
    assert error.startswith(f"error: edges/indptr.npy: {os.strerror(number)}; ")


def test_help_lists_the_presets_and_all_flags(capsys):
    with pytest.raises(SystemExit) as stop:
        parse_with_run_config(LossConfig(), "what it does", ["tiny", "--help"])
    assert stop.value.code in (0, None)
    shown = capsys.readouterr().out
    flags = ("--optimizer.lr", "--regularization.lambda-x.links", "--seed")
    for fragment in ("[PRESET | --config FILE]", "what it does", *PRESETS, *flags):
        assert fragment in shown


def test_a_programming_error_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        run_job(lambda: 1 // 0)
