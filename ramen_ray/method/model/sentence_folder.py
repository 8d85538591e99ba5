"""Sentence-transformers folders: what one does to the states of its first module, and writing one.

Training goes on with its pooling, projection (one Dense) and normalisation; others are refused.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, cast

from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from ramen_ray.data.store.made_folder import write_json
from ramen_ray.method.model.heads import Head
from ramen_ray.method.model.pretrained import (
    EncoderError,
    file_of,
    json_of,
    load_config,
    load_tokenizer,
    load_transformer_tokenizer,
    most_tokens,
    opening,
    resolve_pretrained,
    text_tokenizer,
)
from ramen_ray.method.model.texts import NO_PROMPTS, Prompts, TextTokenizer

EncoderKind = Literal["transformer", "bag"]
Pooling = Literal["mean", "cls"]

FIRST_MODULES: dict[str, EncoderKind] = {"Transformer": "transformer", "StaticEmbedding": "bag"}
OWN_CLASS = r"^sentence_transformers\.(.*\.)?"
OLD_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS = ("torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity")
OWN_FOLDERS = {"Transformer": "", "Pooling": "1_Pooling", "StaticEmbedding": "0_StaticEmbedding"}
TABLES = ("embedding.weight", "embeddings")
"""Names of a bag's token embeddings; the second is model2vec's."""
SENTENCE = "sentence_embedding"
CONFIG_FILE = "config_sentence_transformers.json"
QUERY_PROMPTS = ("query",)
AD_PROMPTS = ("document", "passage", "corpus")
"""Names of the prompts that encode_query and encode_document of sentence-transformers take."""


@dataclass(frozen=True)
class EncoderFolder:
    """What an encoder's folder says; the defaults hold where it has no modules.json."""

    name: str  # a folder, a hub id, or package:MODULE/FOLDER
    kind: EncoderKind  # as what it is trained
    width: int  # of a pooled state, before any projection
    num_layers: int | None = None  # of a transformer
    most_tokens: int | None = None  # that a text may have; None for any number
    table: Path | None = None  # file of a bag's token embeddings; None for a transformer's
    pooling: str = "mean"  # how token states become one, in the words of sentence-transformers
    # folder of the projection, which is ``dense_dim`` wide; None without one
    dense: Path | None = None
    dense_dim: int | None = None
    prompts: Prompts = NO_PROMPTS  # what stands before texts
    notes: tuple[str, ...] = ()  # what training does otherwise than its authors, for the user

    def tokenizer(self, max_length: int, prompts: Prompts) -> TextTokenizer:
        """Return the tokenizer of texts that follow ``prompts``; or an EncoderError."""
        return replace(self._tokenizer, max_length=max_length, prompts=prompts)

    @cached_property
    def _tokenizer(self) -> TextTokenizer:
        is_bag = self.kind == "bag"
        load = load_tokenizer if is_bag else load_transformer_tokenizer
        return text_tokenizer(load(self.name), 0, add_special_tokens=not is_bag)

    def choose_pooling(self, chosen: Pooling | None) -> Pooling:
        """Return the pooling that was ``chosen``, or else the folder's, if it is offered."""
        if chosen is None and self.pooling not in ("mean", "cls"):
            raise EncoderError(
                f"{self.name!r} pools by {self.pooling}, which is not offered: set "
                f"--encoder.pooling mean or cls to pool its states otherwise"
            )
        return chosen or cast(Pooling, self.pooling)

    def choose_prompts(self, query: str | None, ad: str | None) -> Prompts:
        """Return the prompts that were given, or else those that the encoder has."""
        return Prompts(
            self.prompts.query if query is None else query,
            self.prompts.ad if ad is None else ad,
        )

    def check_length(self, max_length: int, flag: str) -> None:
        """Check that there are positions for the ``max_length`` of a ``flag``."""
        if self.most_tokens is not None and max_length > self.most_tokens:
            raise EncoderError(
                f"{flag} {max_length} is more than the {self.most_tokens} positions of "
                f"{self.name!r}"
            )


def open_encoder(name: str, kind: EncoderKind | None = None) -> EncoderFolder:
    """Read what the encoder ``name`` says of itself, to be trained as it is or as ``kind``.

    A folder is read again only if a file has changed. Raises an EncoderError if there is none, or
    it asks for what training would leave out.
    """
    folder = Path(resolve_pretrained(name))
    if not folder.is_dir():
        return _read(name, kind)
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    stamps = ((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return _read_once(name, kind, tuple(stamps))


@lru_cache(maxsize=4)
def _read_once(
    name: str, kind: EncoderKind | None, stamps: tuple[tuple[str, int, int], ...]
) -> EncoderFolder:
    return _read(name, kind)


def _read(name: str, kind: EncoderKind | None) -> EncoderFolder:
    modules = _modules(name)
    first = FIRST_MODULES.get(modules[0][0]) if modules else "transformer"
    if kind == "transformer" and first == "bag":
        raise EncoderError(
            f"{name!r} is a bag of token embeddings, not a transformer: set --encoder.kind bag"
        )
    if modules and not (kind == "bag" and first == "transformer"):
        around = _around(name, modules)
    else:
        around = {}  # a bag takes a transformer's token embeddings only
    if first == "bag":
        width = _shape(around["table"], *TABLES)[1]
        return EncoderFolder(name, "bag", width, **around)
    config = load_config(name)
    with opening("an encoder", name):
        width = int(config.hidden_size)
        limit = most_tokens(config)
        return EncoderFolder(
            name, kind or "transformer", width, int(config.num_hidden_layers), limit, **around
        )


def _around(name: str, modules: list[tuple[str, str]]) -> dict[str, Any]:
    """Return what a folder's modules say, as fields of an EncoderFolder."""
    kinds = [kind for kind, _ in modules]
    honoured = ["StaticEmbedding"] if kinds[0] == "StaticEmbedding" else ["Transformer", "Pooling"]
    honoured += [kind for kind in ("Dense", "Normalize") if kind in kinds]
    if kinds != honoured:
        raise EncoderError(
            f"{name!r}: its modules.json lists {', '.join(kinds)}; honoured are a Transformer with "
            f"Pooling or a StaticEmbedding, then at most one Dense, then Normalize. Take another "
            f"encoder, or leave the rest out of a copy's modules.json, to train without it"
        )
    paths = dict(modules)
    config = json_of(name, CONFIG_FILE) or {}
    notes = _notes(name, config, "Normalize" in paths)
    around: dict[str, Any] = {"prompts": _prompts(config), "notes": notes}
    if "StaticEmbedding" in paths:
        file = f"{paths['StaticEmbedding']}/model.safetensors"
        around["table"] = _required(name, file.removeprefix("/"))
    else:
        around["pooling"] = _pooling(name, _required_json(name, f"{paths['Pooling']}/config.json"))
    if "Dense" in paths:
        around["dense"], around["dense_dim"] = _dense(name, paths["Dense"])
    return around


def _modules(name: str) -> list[tuple[str, str]]:
    """Return kinds and paths of the modules but Dropout, which stays off; [] without modules.json.

    Classes that are not sentence-transformers' keep their full names.
    """
    listed = json_of(name, "modules.json")
    if listed is None:
        return []
    try:
        modules = [
            (re.sub(OWN_CLASS, "", module["type"]), module["path"].strip("./")) for module in listed
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise EncoderError(f"{name!r}: its modules.json is not a list of modules") from error
    if modules and modules[0][0] == "Transformer" and (path := modules[0][1]):
        raise EncoderError(
            f"{name!r}: its weights are in {path}, not in the folder itself; in a copy, move the "
            f'files of {path} up, and write "path": "" for the Transformer of modules.json'
        )
    return [(kind, path) for kind, path in modules if kind != "Dropout"]


def _pooling(name: str, config: Any) -> str:
    if config.get("include_prompt") is False:
        raise EncoderError(
            f"{name!r} leaves the tokens of prompts out of its pooling (include_prompt false), "
            f"which is not offered: set it to true in a copy's pooling config.json"
        )
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in OLD_POOLING.items() if config.get(key)] or "mean"
    return modes if isinstance(modes, str) else " and ".join(modes)


def _dense(name: str, path: str) -> tuple[Path, int]:
    """Return the folder of a Dense and its width."""
    config = _required_json(name, f"{path}/config.json")
    activation = config.get("activation_function", ACTIVATIONS[0])
    refused = [] if activation in ACTIVATIONS else [f"activation_function {activation}"]
    if config.get("use_residual"):
        refused.append("use_residual")
    for key in ("module_input_name", "module_output_name"):
        if (value := config.get(key)) not in (None, SENTENCE):
            refused.append(f"{key} {value}")
    if refused:
        raise EncoderError(
            f"{name!r}: its {path} has {', '.join(refused)}; a projection is honoured with tanh or "
            f"without (Identity), on the pooled state. Take another encoder, or leave it out of a "
            f"copy's modules.json, to train without it"
        )
    weights = _required(name, f"{path}/model.safetensors")
    return weights.parent, _shape(weights, "linear.weight")[0]


def _prompts(config: Any) -> Prompts:
    """Return what sentence-transformers puts before queries and documents."""
    prompts = config.get("prompts") or {}

    def named(names: tuple[str, ...]) -> str:
        return next((prompts[name] for name in names if name in prompts), "") or ""

    return Prompts(named(QUERY_PROMPTS), named(AD_PROMPTS))


def _notes(name: str, config: Any, is_normalised: bool) -> tuple[str, ...]:
    """Return what the folder asks for and is not done here."""
    notes = []
    prompts = {key: text for key, text in (config.get("prompts") or {}).items() if text}
    if prompts and not any(_prompts(config)):
        listed = ", ".join(f"{key} {text!r}" for key, text in prompts.items())
        notes.append(
            f"{name!r} has prompts ({listed}), but does not say which is for queries: choose with "
            f"--encoder.query-prompt and --encoder.ad-prompt"
        )
    similarity = config.get("similarity_fn_name")
    if similarity not in (None, "cosine") and not is_normalised:
        notes.append(f"{name!r} is made for similarity {similarity!r}; here it is the cosine")
    return tuple(notes)


def _required(name: str, relative: str) -> Path:
    file = file_of(name, relative)
    if file is None:
        raise EncoderError(f"{name!r} has no {relative}, which its modules.json needs")
    return file


def _required_json(name: str, relative: str) -> Any:
    _required(name, relative)
    return json_of(name, relative)


def _shape(file: Path, *names: str) -> list[int]:
    """Return the shape of the weights that have one of these names."""
    with opening(names[0], str(file)), safe_open(file, "numpy") as content:
        keys = set(content.keys())
        weights = next((name for name in names if name in keys), names[0])
        shape: list[int] = content.get_slice(weights).get_shape()
        return shape


def load_projection(pretrained: str, dense: Path | None) -> Head | None:
    """Load the projection in the folder ``dense`` of an encoder, if there is one."""
    with opening("the projection", pretrained):
        return None if dense is None else Head.load(dense)


def load_table(pretrained: str, file: Path) -> Tensor:
    """Load a bag's token embeddings (vocabulary, D) float32."""
    with opening("the token embeddings", pretrained):
        content = load_file(file)
        name = next((name for name in TABLES if name in content), TABLES[0])
        table = content[name].float()
        if name == TABLES[1]:  # of a token: the row that it shares with others, times its weight
            if "mapping" in content:
                table = table[content["mapping"].long()]
            if "weights" in content:
                table = table * content["weights"].float()[:, None]
        return table


def write_transformer_settings(folder: Path, pooling: Pooling, width: int, max_length: int) -> None:
    """Write how a saved transformer's states, of ``width``, are pooled, and its longest text."""
    offered = ("pooling_mode_mean_tokens", "pooling_mode_cls_token")
    modes = {key: OLD_POOLING[key] == pooling for key in offered}
    (folder / OWN_FOLDERS["Pooling"]).mkdir(exist_ok=True)
    config = {"word_embedding_dimension": width, **modes}
    write_json(folder / OWN_FOLDERS["Pooling"] / "config.json", config)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length})


def write_modules(
    folder: Path, kinds: list[str], projection: Head | None, prompts: Prompts
) -> None:
    """List a folder's modules (``kinds``, any projection, Normalize), and write its prompts."""
    if any(prompts):
        named = {"query": prompts.query, "document": prompts.ad}
        write_json(folder / CONFIG_FILE, {"prompts": named, "default_prompt_name": None})
    modules = []
    dense = [] if projection is None else ["Dense"]
    for row, kind in enumerate([*kinds, *dense, "Normalize"]):
        path = OWN_FOLDERS.get(kind, f"{row}_{kind}")
        (folder / path).mkdir(exist_ok=True)
        if projection is not None and kind == "Dense":
            projection.save(folder / path)
        of_class = f"sentence_transformers.models.{kind}"
        modules.append({"idx": row, "name": str(row), "path": path, "type": of_class})
    write_json(folder / "modules.json", modules)
