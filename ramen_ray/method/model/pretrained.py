"""Find pretrained encoders: a local folder, a folder inside an installed package, or a hub id."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.utils import cached_file

from ramen_ray.data.store.checksums import content_digest
from ramen_ray.errors import UserError, first_line_of
from ramen_ray.method.model.texts import TextTokenizer

PACKAGE_PREFIX = "package:"
LOAD_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What transformers raises of damaged files."""


class EncoderError(UserError):
    """An encoder or its tokenizer cannot be loaded, or the two do not fit together."""


def resolve_pretrained(name: str) -> str:
    """Return the folder or hub id that ``name`` stands for.

    ``name`` is a local folder, ``package:MODULE/FOLDER`` for weights that an installed package
    ships, or a hub id such as ``sentence-transformers/msmarco-distilbert-base-v4``.

    Raises:
        EncoderError: the package or folder is missing.
    """
    if name.startswith(PACKAGE_PREFIX):
        module, _, folder = name.removeprefix(PACKAGE_PREFIX).partition("/")
        if not module:
            raise EncoderError(f"encoder {name!r}: write package:MODULE/FOLDER")
        spec = _find_spec(module)
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
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise EncoderError(f"there is no encoder folder at {name}")
    return name


def content_of(name: str) -> str:
    """Identify what is loaded for ``name``: the content of its folder, or the hub's commit.

    Raises:
        EncoderError: there is no such encoder.
    """
    source = resolve_pretrained(name)
    folder = Path(source)
    if folder.is_dir():
        files = sorted(file for file in folder.rglob("*") if _may_be_loaded(file, folder))
        named = ((file.relative_to(folder).as_posix(), file) for file in files)
        return content_digest(named, "sha256")  # the fastest that processors have built in
    try:
        file = cached_file(source, "config.json")
    except LOAD_ERRORS as error:
        raise EncoderError(
            f"cannot load an encoder from {name!r}: {first_line_of(error)}"
        ) from error
    return Path(str(file)).parent.name  # .../snapshots/COMMIT/config.json


def _may_be_loaded(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith((".", "__pycache__")) for part in file.relative_to(folder).parts)
    return file.is_file() and not hidden


def _find_spec(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):  # of a module within one that is not there
        return None


def load_config(name: str) -> PreTrainedConfig:
    """Load the transformers configuration of ``name`` (see :func:`resolve_pretrained`)."""
    source = resolve_pretrained(name)
    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False)
    except LOAD_ERRORS as error:
        raise EncoderError(
            f"cannot load an encoder from {name!r}: {first_line_of(error)}"
        ) from error


def load_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Load the fast tokenizer of ``name`` (see :func:`resolve_pretrained`).

    Raises:
        EncoderError: there is no tokenizer, or it is not a fast one.
    """
    source = resolve_pretrained(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # tokenizers raises plain exceptions
        raise EncoderError(
            f"cannot load a tokenizer from {name!r}: {first_line_of(error)}"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise EncoderError(f"{name!r} has no fast tokenizer (tokenizer.json)")
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise EncoderError(f"{name!r} has no vocabulary; is its tokenizer.json missing?")
    return tokenizer


def text_tokenizer(
    tokenizer: PreTrainedTokenizerFast, max_length: int, add_special_tokens: bool
) -> TextTokenizer:
    """Describe ``tokenizer`` and its settings as plain values."""
    candidates = (tokenizer.unk_token_id, tokenizer.pad_token_id, 0)
    return TextTokenizer(
        definition=tokenizer.backend_tokenizer.to_str(),
        max_length=max_length,
        add_special_tokens=add_special_tokens,
        placeholder=next(token for token in candidates if token is not None),
        vocab_size=len(tokenizer),
    )
