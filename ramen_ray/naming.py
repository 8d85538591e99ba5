"""Names that users give, which become parts of paths, URIs and dotted keys."""

import hashlib
import re
import reprlib
import unicodedata
from pathlib import Path

from ramen_ray.errors import DatasetError, UserError

MAX_BYTES = 100  # file systems allow 255, and other names are made from these

VERSIONED = re.compile(r"^(.*)@v(\d+)$")
"""A folder and the version of a Delta table there, as Spark writes it."""


class BadNameError(UserError):
    """A name is not allowed; the message says which names are."""


def naming_fault(name: str, dots: bool = True) -> str | None:
    """Say what is wrong with ``name``, or return None; ``dots`` says whether dots are allowed."""
    allowed = r"\w[\w.-]*" if dots else r"\w[\w-]*"
    if re.fullmatch(allowed, name) and len(name.encode()) <= MAX_BYTES:
        return None
    marks = "'.', '_' and '-'" if dots else "'_' and '-'"
    return (
        f"{reprlib.repr(name)} is not a valid name: use letters, digits, {marks}, begin with "
        f"a letter, a digit or '_', and use at most {MAX_BYTES} bytes"
    )


def checked_name(name: str) -> str:
    """Return ``name`` as it is; a BadNameError if it is not a valid name."""
    if fault := naming_fault(name):
        raise BadNameError(fault)
    return name


def joined_name(*parts: str) -> str:
    """Join names with ``-``; a name that is too long is cut and gets a hash of the whole."""
    whole = "-".join(parts)
    if len(whole.encode()) <= MAX_BYTES:
        return whole
    digest = short_hash(whole)
    kept = whole.encode()[: MAX_BYTES - len(digest) - 1].decode(errors="ignore")
    return f"{kept}-{digest}"


def short_hash(content: str) -> str:
    """Hash what a name stands for, into eight characters."""
    return hashlib.blake2b(content.encode(), digest_size=4).hexdigest()


def name_like(text: str, otherwise: str) -> str:
    """Make a name from a text, such as a folder's name; ``otherwise`` if nothing of it is left."""
    composed = unicodedata.normalize("NFC", text)
    return joined_name(re.sub(r"[^\w.-]+", "-", composed).strip(".-") or otherwise)


def dataset_name(given: str | None, folder: Path) -> str:
    """Return the ``given`` name of a dataset, a DatasetError if it is bad, or the folder's name."""
    try:
        return name_like(folder.name, "dataset") if given is None else checked_name(given)
    except BadNameError as error:
        raise DatasetError(f"name: {error}") from error
