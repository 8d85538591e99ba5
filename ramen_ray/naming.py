"""Names that come from outside, and become parts of paths, addresses and dotted keys."""

import hashlib
import re
import reprlib
import unicodedata

from ramen_ray.errors import UserError

MAX_BYTES = 100  # file systems take 255, and names grow by what is made of them
_DIGEST_BYTES = 4


class BadNameError(UserError):
    """Something cannot be called so; the message says what a name may be."""


def naming_fault(name: str, dots: bool = True) -> str | None:
    """Say what a name has to be if ``name`` is none; ``dots`` tells whether it may hold any."""
    allowed = r"\w[\w.-]*" if dots else r"\w[\w-]*"
    if re.fullmatch(allowed, name) and len(name.encode()) <= MAX_BYTES:
        return None
    marks = "'.', '_' and '-'" if dots else "'_' and '-'"
    return (
        f"{reprlib.repr(name)} is no valid name: it may hold letters, digits, {marks}, begins with "
        f"a letter, a digit or '_', and has at most {MAX_BYTES} bytes"
    )


def checked_name(name: str) -> str:
    """Return ``name`` as it is.

    Raises:
        BadNameError: it is none.
    """
    if fault := naming_fault(name):
        raise BadNameError(fault)
    return name


def joined_name(*parts: str) -> str:
    """Join names by ``-``; what gets too long is cut, and ends with a hash of the whole."""
    whole = "-".join(parts)
    if len(whole.encode()) <= MAX_BYTES:
        return whole
    digest = hashlib.blake2b(whole.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    kept = whole.encode()[: MAX_BYTES - len(digest) - 1].decode(errors="ignore")
    return f"{kept}-{digest}"


def name_like(text: str, otherwise: str) -> str:
    """Make a name of a text, such as a folder's name; ``otherwise`` if it has no letter."""
    composed = unicodedata.normalize("NFC", text)
    return joined_name(re.sub(r"[^\w.-]+", "-", composed).strip(".-") or otherwise)
