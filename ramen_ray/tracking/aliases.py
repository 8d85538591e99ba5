"""Aliases of registered models, such as ``champion``: which version has one, and who had it before.

An alias is given and restored here only, and only if it is still as it was when that was decided.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from ramen_ray.naming import short_hash
from ramen_ray.tracking.registry import Registry, RegistryError, ask_once, registry_errors

CHAMPION = "champion"
HISTORY = "{}_history"
"""Tag of a registered model: versions that have had an alias, the latest last.

The version that has the alias now counts as the latest, also where the tag does not end with it."""

ASKED = "champion_asked"
"""Tag of a registered model: how many candidates have been compared with it, and the last one."""


class MovedError(RegistryError):
    """An alias is not as it was when the work began that was to move it."""

    def __init__(self, name: str, alias: str) -> None:
        super().__init__(f"{name}@{alias} was moved meanwhile; run this again")


@dataclass(frozen=True)
class Holder:
    """The version of a model that has an alias, or else the last one that had it and exists."""

    name: str  # of the model
    alias: str
    has_alias: bool = False
    history: tuple[str, ...] = ()  # versions that have had the alias, this one last
    source: str | None = None  # the URI of the logged model that it is a version of
    gone: tuple[str, ...] = ()  # versions that had the alias after it, and were deleted

    @property
    def version(self) -> str | None:
        """Its number; None if no version that has had the alias is there."""
        return self.history[-1] if self.history else None

    @property
    def uri(self) -> str:
        """The URI by which MLflow loads it."""
        return f"models:/{self.name}/{self.version}"


def name_and_alias(named: str) -> tuple[str, str]:
    """Split ``NAME@ALIAS``; a name alone is that of its champion."""
    name, at, alias = named.partition("@")
    return name, alias if at else CHAMPION


def holder_of(registry: Registry, name: str, alias: str) -> Holder:
    """Return which version of a model has an alias, or had it last, whoever gave it."""
    model = registry.unless_absent(registry.client.get_registered_model, name)
    if model is None:
        return Holder(name, alias)
    history = tuple(filter(None, model.tags.get(HISTORY.format(alias), "").split(",")))
    if has_alias := alias in model.aliases:
        history = _ending_with(str(model.aliases[alias]), history)
    return _last_there(registry, Holder(name, alias, has_alias, history))


def give(registry: Registry, alias: str, run_id: str, model_id: str, seen: Holder) -> str:
    """Register a logged model under the name of ``seen``, and give it an alias.

    Returns its version. Raises a MovedError, and changes nothing, if :func:`holder_of` does not
    return ``seen`` any more.
    """
    with _still(registry, seen):
        number = registry.register(seen.name, run_id, model_id)
        _move(registry, holder_of(registry, seen.name, alias), number)
    return number


def restore(registry: Registry, name: str, alias: str) -> tuple[Holder, Holder]:
    """Give an alias back to the last version that had it before and exists.

    Returns who held it, and who does now. Raises a RegistryError if there is no such version, or it
    does not answer, and a MovedError if the alias was moved meanwhile.
    """
    present = earlier = holder_of(registry, name, alias)
    if present.has_alias:
        before = Holder(name, alias, history=present.history[:-1])
        earlier = _last_there(registry, before)
    if earlier.version is None:
        than = f" before version {present.version}" if present.has_alias else ""
        gone = f" but {', '.join(earlier.gone)}, which is deleted" if earlier.gone else ""
        raise RegistryError(
            f"no version of {name!r} is known to have had the alias {alias!r}{than}{gone}"
        )
    ask_once(registry.load(earlier.uri))
    with _still(registry, present):
        _move(registry, earlier, earlier.version)
    return present, earlier


def time_asked(registry: Registry, name: str, model_id: str) -> int:
    """Return the number of a candidate among those that were compared; it stays if asked again."""
    model = registry.unless_absent(registry.client.get_registered_model, name)
    number, _, last = (model.tags.get(ASKED, "0") if model else "0").partition(" ")
    return int(number) + (last != model_id)


def note_asked(registry: Registry, name: str, model_id: str, number: int) -> None:
    """Note a candidate that was compared, and what :func:`time_asked` has returned for it."""
    with registry_errors(registry.uri):
        registry.client.set_registered_model_tag(name, ASKED, f"{number} {model_id}")


def _last_there(registry: Registry, holder: Holder) -> Holder:
    """Return the last version of a holder's history that was not deleted."""
    history = holder.history
    for length in range(len(history), 0, -1):
        get = registry.client.get_model_version
        version = registry.unless_absent(get, holder.name, history[length - 1])
        if version is not None:
            kept = history[:length]
            gone = history[length:]
            return replace(holder, history=kept, source=version.source, gone=gone)
    return replace(holder, history=(), gone=history)


@contextmanager
def _still(registry: Registry, seen: Holder) -> Iterator[None]:
    """Let the block move an alias, unless it was moved since it was ``seen``: a MovedError.

    MLflow cannot compare and set at once. Jobs of a user on one machine wait here for each other;
    what another machine writes in the milliseconds of the block is overwritten.
    """
    lock = f"ramen_ray-{os.getuid()}-{short_hash(registry.uri)}.lock"
    with FileLock(Path(tempfile.gettempdir(), lock)):
        if holder_of(registry, seen.name, seen.alias) != seen:
            raise MovedError(seen.name, seen.alias)
        yield


def _move(registry: Registry, before: Holder, number: str) -> None:
    """Give an alias to a version, and append that to the history unless it is the last there.

    A process that is killed between two writes leaves the alias as it was or as it will be, and a
    tag by which :func:`holder_of` reads the history that belongs to it.
    """
    name = before.name
    client = registry.client
    tag = HISTORY.format(before.alias)
    with registry_errors(registry.uri):
        client.set_registered_model_tag(name, tag, ",".join(before.history))
        client.set_registered_model_alias(name, before.alias, number)
        noted = ",".join(_ending_with(number, before.history))
        client.set_registered_model_tag(name, tag, noted)


def _ending_with(number: str, history: tuple[str, ...]) -> tuple[str, ...]:
    return history if history[-1:] == (number,) else (*history, number)
