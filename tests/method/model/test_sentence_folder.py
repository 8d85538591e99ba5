"""Folders of sentence-transformers, which loads and encodes what it and we have saved."""

import json
from itertools import product
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import (
    Dropout,
    LayerNorm,
    Pooling,
    StaticEmbedding,
)
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ramen_ray.config import EncoderConfig, RunConfig, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import UserError
from ramen_ray.method.graph.similar import SimilarSettings
from ramen_ray.method.model.dual_encoder import DualEncoder, tokenize_texts
from ramen_ray.method.model.encoder import build_bag, build_transformer, load_encoder
from ramen_ray.method.model.pretrained import (
    POSITIONS_AFTER_PADDING,
    EncoderError,
    content_of,
    most_tokens,
)
from ramen_ray.method.model.sentence_folder import open_encoder
from ramen_ray.orchestration.prepare.similar_set import add_similar
from ramen_ray.orchestration.run.build import build_model
from ramen_ray.orchestration.run.inputs import check_config, encoder_tokenizer
from ramen_ray.orchestration.run.setup import embedding_dim

WORDS = ["robin", "heron", "sloop", "ketch", "tango", "waltz", "maple", "alder"]
TEXTS = ["robin", "heron sloop ketch", "tango zeppelin", "maple alder " * 12, "waltz waltz robin"]
MAX_LENGTH = 12
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 20,
    "initializer_range": 0.5,
}
MODELS = ["Bert", "Roberta", "MPNet", "GPT2"]
CLOSE = 1e-5


def _tokenizer(**special):
    """Return a tokenizer by words, with these special tokens; the id of padding is 1."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *WORDS]
    backend = Tokenizer(models.WordLevel(dict(zip(tokens, range(99), strict=False)), "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


SPECIAL = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def _plain(folder, name="Bert", tokenizer=None):
    """Save a random transformer and a tokenizer as transformers does."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(vocab_size=12, pad_token_id=1, **SIZES)
    getattr(transformers, f"{name}Model")(config).save_pretrained(folder)
    (tokenizer or _tokenizer(**SPECIAL)).save_pretrained(folder)
    return folder


def _theirs(plain, pooling, *rest, **settings):
    """Put modules of sentence-transformers behind a transformer."""
    torch.manual_seed(1)
    modules = [Transformer(str(plain)), Pooling(16, pooling), *rest]
    return SentenceTransformer(modules=modules, device="cpu", **settings)


def _encode(encoder, max_length=MAX_LENGTH):
    tokenize = encoder.text_tokenizer(max_length)
    return DualEncoder(encoder).embed_texts(tokenize_texts(tokenize, TEXTS), np.arange(len(TEXTS)))


def _encoded(folder, max_length=MAX_LENGTH):
    theirs = SentenceTransformer(str(folder), device="cpu")
    if max_length is not None:
        theirs.max_seq_length = max_length
    return theirs.encode(TEXTS, normalize_embeddings=True)


def _saved(folder, pooling, *rest, name="Bert", **settings):
    """Save what sentence-transformers makes of a random transformer; returns the path."""
    theirs = _theirs(_plain(folder / "plain", name), pooling, *rest, **settings)
    theirs.save(str(folder / "theirs"))
    return str(folder / "theirs")


HEADS = [
    [Dense(16, 6), Normalize()],
    [Dense(16, 6, bias=False, activation_function=torch.nn.Identity())],
    [Dropout(0.5), Normalize()],
]


@pytest.mark.parametrize(
    ("name", "pooling", "head"),
    [*product(MODELS, ["mean"], [[]]), ("Bert", "cls", []), *product(["Bert"], ["mean"], HEADS)],
)
def test_what_sentence_transformers_saved_is_encoded_alike_and_back(name, pooling, head, tmp_path):
    saved = _saved(tmp_path, pooling, *head, name=name)
    expected = _encoded(saved)
    encoder = build_transformer(saved)
    np.testing.assert_allclose(_encode(encoder), expected, atol=CLOSE)
    before = _encode(encoder, 18)
    encoder.save(tmp_path / "ours", MAX_LENGTH)
    np.testing.assert_allclose(_encoded(tmp_path / "ours", None), expected, atol=CLOSE)
    for kept in (encoder, load_encoder(tmp_path / "ours")):
        assert _encode(kept, 18).tolist() == before.tolist(), "saving changes and cuts nothing"
    config = EncoderConfig(pretrained=str(tmp_path / "ours"))
    assert embedding_dim(config) == expected.shape[1]


def test_a_pooling_that_is_asked_for_is_taken_instead(tmp_path):
    _plain(tmp_path / "plain")
    for pooling in ("max", "mean"):
        _theirs(tmp_path / "plain", pooling).save(str(tmp_path / pooling))
    found = _encode(build_transformer(str(tmp_path / "max"), "mean"))
    np.testing.assert_allclose(found, _encoded(tmp_path / "mean"), atol=CLOSE)


REFUSED = {
    "LayerNorm": (["mean", LayerNorm(16)], "LayerNorm"),
    "max": (["max"], "max.*--encoder.pooling"),
    "two poolings": ([("mean", "max")], "mean and max"),
    "GELU": (["mean", Dense(16, 8, activation_function=torch.nn.GELU())], "2_Dense.*GELU"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_modules_that_training_would_leave_out_are_refused(case, tmp_path):
    modules, fragment = REFUSED[case]
    saved = _saved(tmp_path, *modules)
    for load in (build_transformer, lambda name: load_encoder(Path(name))):
        with pytest.raises(EncoderError, match=f"theirs.*{fragment}"):
            load(saved)
    build_bag(saved)  # has only the token embeddings


@pytest.mark.parametrize(
    ("file", "change", "place"),
    [
        ("modules.json", lambda it: it.__setitem__(1, "Pooling"), "modules"),
        ("modules.json", lambda it: it[0].update(path="0_Transformer"), "0_Transformer"),
        (
            "2_Dense/config.json",
            lambda it: it.update(module_input_name="token_embeddings"),
            "2_Dense",
        ),
        ("sentence_bert_config.json", lambda it: it.update(do_lower_case=True), "do_lower_case"),
        ("2_Dense/model.safetensors", None, "2_Dense"),
    ],
)
def test_files_that_are_damaged_or_ask_for_more_are_named(file, change, place, tmp_path):
    saved = _saved(tmp_path, "mean", Dense(16, 8), Normalize())
    path = Path(saved, file)
    if change is None:
        path.unlink()
    else:
        content = json.loads(path.read_text()) if path.is_file() else {}
        change(content)
        path.write_text(json.dumps(content))
    with pytest.raises(EncoderError, match=place):
        build_transformer(saved)


@pytest.mark.parametrize(
    ("prompts", "default"),
    [
        ({"query": "robin: ", "document": "heron "}, None),
        ({"query": "robin: ", "passage": "heron "}, "query"),
        ({"query": "robin: "}, None),
        ({"query": "robin: ", "other": "tango "}, "query"),
        ({"clustering": "tango "}, "clustering"),
    ],
)
@pytest.mark.parametrize("kind", ["transformer", "bag"])
def test_prompts_are_those_of_sentence_transformers_and_are_saved(kind, prompts, default, tmp_path):
    length = MAX_LENGTH if kind == "transformer" else 99  # theirs do not cut for a bag
    if kind == "bag":
        static = StaticEmbedding(_tokenizer(**SPECIAL).backend_tokenizer, embedding_dim=6)
        theirs = SentenceTransformer(
            modules=[static], device="cpu", prompts=prompts, default_prompt_name=default
        )
    else:
        plain = _plain(tmp_path / "plain")
        theirs = _theirs(plain, "mean", prompts=prompts, default_prompt_name=default)
    theirs.save(str(tmp_path / "theirs"))
    if "passage" not in prompts:  # else as it is saved, with a prompt of documents that is empty
        settings = {"prompts": prompts, "default_prompt_name": default}
        named = tmp_path / "theirs" / "config_sentence_transformers.json"
        named.write_text(json.dumps(settings))
    _tokenizer(**SPECIAL).save_pretrained(tmp_path / "theirs")
    config = EncoderConfig(pretrained=str(tmp_path / "theirs"), kind=kind, max_length=length)
    model = build_model(RunConfig(encoder=config))
    model.save(tmp_path / "ours", length)
    own = config.model_copy(update={"pretrained": str(tmp_path / "ours" / "encoder")})
    for encoder, folder in ((config, "theirs"), (own, "ours/encoder")):
        loaded = SentenceTransformer(str(tmp_path / folder), device="cpu")
        if kind == "transformer":
            loaded.max_seq_length = MAX_LENGTH
        tokenize = encoder_tokenizer(encoder)
        for table, encode in (
            ("queries/test", loaded.encode_query),
            ("ads", loaded.encode_document),
            ("anchors/links", loaded.encode_document),
        ):
            tokens = tokenize_texts(tokenize, TEXTS, tokenize.prompts.of(table))
            found = model.embed_texts(tokens, np.arange(len(TEXTS)))
            expected = encode(TEXTS, normalize_embeddings=True)
            np.testing.assert_allclose(found, expected, atol=CLOSE)


def test_prompts_that_are_asked_for_are_taken_instead(tmp_path):
    saved = _saved(tmp_path, "mean", prompts={"query": "robin: "})
    asked = EncoderConfig(pretrained=saved, query_prompt="", ad_prompt="heron ")
    assert encoder_tokenizer(asked).prompts == ("", "heron ")
    build_model(RunConfig(encoder=asked)).save(tmp_path / "ours", MAX_LENGTH)
    again = EncoderConfig(pretrained=str(tmp_path / "ours" / "encoder"))
    assert encoder_tokenizer(again).prompts == ("", "heron ")


def test_the_first_dimensions_are_those_of_sentence_transformers(tmp_path):
    plain = str(_plain(tmp_path / "plain"))
    encoder = build_model(RunConfig(encoder=EncoderConfig(pretrained=plain, dim=5))).encoder
    theirs = SentenceTransformer(plain, device="cpu", truncate_dim=5)
    theirs.max_seq_length = MAX_LENGTH
    expected = theirs.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(_encode(encoder), expected, atol=CLOSE)
    encoder.save(tmp_path / "ours", MAX_LENGTH)
    np.testing.assert_allclose(_encoded(tmp_path / "ours", None), expected, atol=CLOSE)
    assert embedding_dim(EncoderConfig(pretrained=plain, dim=5)) == 5


def test_what_cannot_be_done_is_noted_or_refused(tmp_path):
    plain = _plain(tmp_path / "plain")
    odd = {"prompts": {"s2p": "find: "}, "similarity_fn_name": "dot"}
    _theirs(plain, "mean", **odd).save(str(tmp_path / "noted"))
    of_prompts, of_similarity = open_encoder(str(tmp_path / "noted")).notes
    assert "s2p 'find: '" in of_prompts
    assert "'dot'" in of_similarity
    pooling = tmp_path / "noted" / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({**json.loads(pooling.read_text()), "include_prompt": False}))
    with pytest.raises(EncoderError, match="include_prompt"):
        build_transformer(str(tmp_path / "noted"))
    _theirs(plain, "mean", Normalize(), similarity_fn_name="dot").save(str(tmp_path / "same"))
    assert not open_encoder(str(tmp_path / "same")).notes


@pytest.mark.parametrize("kind", ["transformer", "bag"])
def test_a_checkpoint_with_a_projection_is_trained_further(kind, tmp_path):
    encoder = EncoderConfig(
        kind=kind, pretrained=str(_plain(tmp_path / "plain")), pooling="cls", projection_dim=5
    )
    first = build_model(RunConfig(encoder=encoder))
    first.save(tmp_path / "checkpoint", MAX_LENGTH)
    saved = str(tmp_path / "checkpoint" / "encoder")
    for dim in (None, 5):
        again = EncoderConfig(kind=kind, pretrained=saved, projection_dim=dim)
        found = build_model(RunConfig(encoder=again, seed=7)).encoder
        np.testing.assert_allclose(_encode(found), _encode(first.encoder), atol=CLOSE)
        assert embedding_dim(again) == 5
    if kind == "bag":
        with pytest.raises(EncoderError, match=r"--encoder\.kind bag"):
            build_transformer(saved)


def _static(folder, table):
    """Save a bag as sentence-transformers does; returns the file of its weights."""
    backend = _tokenizer(**SPECIAL).backend_tokenizer
    static = StaticEmbedding(backend, embedding_weights=table.numpy())
    SentenceTransformer(modules=[static], device="cpu").save(str(folder))
    (weights,) = folder.rglob("*.safetensors")
    return weights


@pytest.mark.parametrize("kind", ["static", "with a tokenizer of its own", "model2vec"])
def test_a_bag_is_encoded_as_sentence_transformers_does(kind, tmp_path):
    draw = torch.Generator().manual_seed(0)
    table = torch.randn(12, 6, generator=draw)
    theirs = tmp_path / "theirs"
    weights = _static(theirs, table)
    if kind == "with a tokenizer of its own":
        _tokenizer(**SPECIAL).save_pretrained(theirs)
    elif kind == "model2vec":
        mapping = torch.arange(12).flip(0) // 2
        scales = torch.rand(12, generator=draw) + 0.5
        save_file({"embeddings": table[:6].half(), "mapping": mapping, "weights": scales}, weights)
    expected = _encoded(theirs, None)
    encoder = build_bag(str(theirs))
    np.testing.assert_allclose(_encode(encoder, 99), expected, atol=CLOSE)
    encoder.save(tmp_path / "ours", MAX_LENGTH)
    np.testing.assert_allclose(_encoded(tmp_path / "ours", None), _encode(encoder), atol=CLOSE)
    kept = _encode(load_encoder(tmp_path / "ours"), 99)
    np.testing.assert_allclose(kept, expected, atol=CLOSE, err_msg="it is not cut")
    assert embedding_dim(EncoderConfig(pretrained=str(theirs), kind="bag")) == 6
    save_file({"other": table}, weights)
    with pytest.raises(EncoderError, match=r"embedding.*theirs"):
        build_bag(str(theirs))


@pytest.mark.parametrize("model_type", [*sorted(POSITIONS_AFTER_PADDING), "bert", "gpt2", "xlnet"])
def test_positions_are_counted_as_the_transformer_does(model_type):
    config = transformers.AutoConfig.for_model(model_type, pad_token_id=1)
    with torch.device("meta"):
        backbone = transformers.AutoModel.from_config(config)
    tables = [
        len(module.weight) - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in backbone.named_modules()
        if name.endswith(("position_embeddings", "wpe"))
    ]
    assert [most_tokens(config)] == (tables[:1] or [None])  # later ones are of other parts


@pytest.mark.parametrize(
    ("special", "sides"),
    [(SPECIAL, "left"), ({"eos_token": "</s>"}, "right"), ({"unk_token": "<unk>"}, "left")],
)
@pytest.mark.parametrize(("name", "pooling"), [("Roberta", "mean"), ("GPT2", "cls")])
def test_a_tokenizer_that_pads_otherwise_is_saved_for_the_same_vectors(
    pooling, name, special, sides, tmp_path
):
    tokenizer = _tokenizer(**special, padding_side=sides, truncation_side=sides)
    encoder = build_transformer(str(_plain(tmp_path / "plain", name, tokenizer)), pooling)
    encoder.save(tmp_path / "saved", MAX_LENGTH)
    np.testing.assert_allclose(_encode(encoder), _encoded(tmp_path / "saved", None), atol=CLOSE)
    again = load_encoder(tmp_path / "saved")
    assert _encode(again).tolist() == _encode(encoder).tolist()


def test_a_folder_of_the_hub_is_read_alike_and_known_by_its_commit(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "models--mine--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    snapshot = folder / "snapshots" / "abc"
    _theirs(_plain(tmp_path / "plain"), "cls", Dense(16, 6)).save(str(snapshot))
    found = open_encoder("mine/tiny")
    assert (found.pooling, found.dense, found.dense_dim) == ("cls", snapshot / "2_Dense", 6)
    assert content_of("mine/tiny") == "abc"
    with pytest.raises(EncoderError, match="mine/other"):
        content_of("mine/other")
    (snapshot / "modules.json").unlink()
    assert open_encoder("mine/tiny").dense is None
    assert "modules.json" in caplog.text


def test_an_encoder_that_cannot_be_trained_is_refused_at_the_start(dataset_path, tmp_path, caplog):
    plain = _plain(tmp_path / "Roberta", "Roberta")
    theirs = _theirs(plain, "mean", Dense(16, 6), prompts={"s2p": "find: "})
    theirs.save(str(tmp_path / "dense"))

    def check(folder, **settings):
        settings = {"max_length": 8, **settings}
        encoder = EncoderConfig(pretrained=str(tmp_path / folder), **settings)
        config = RunConfig(encoder=encoder, dataset=str(dataset_path))
        no_graphs = {"regularization.lambda_x": {}, "regularization.lambda_z": {}}
        config = overlay(config, {"training.global_batch_size": 8, **no_graphs})
        check_config(config, Dataset(dataset_path))

    cases = [
        ("Roberta", {"max_length": 19}, "encoder.max_length 19"),
        ("dense", {"projection_dim": 5}, "projection"),
        ("dense", {"dim": 5}, "encoder.dim 5: "),
        ("Roberta", {"dim": 17}, "encoder.dim 17"),
        ("Roberta", {"dim": 5, "projection_dim": 5}, "encoder.dim or encoder.projection"),
    ]
    for folder, settings, fragment in cases:
        with pytest.raises(UserError, match=fragment):
            check(folder, **settings)
    check("Roberta", max_length=18)
    check("Roberta", max_length=19, kind="bag")
    check("dense", projection_dim=6)
    assert "s2p 'find: '" in caplog.text
    with pytest.raises(EncoderError, match="max_length 19"):
        add_similar(dataset_path, "near", SimilarSettings(str(plain), max_length=19))
