"""The retriever that is served, and the version that takes its place when an alias moves."""

import gc
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ramen_ray.errors import first_line_of
from ramen_ray.orchestration.serve.exchanges import BusyError
from ramen_ray.orchestration.serve.figures import Figures
from ramen_ray.orchestration.serve.held import Held
from ramen_ray.tracking.addresses import TrackingError
from ramen_ray.tracking.registry import Registry, RegistryError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """A version of a retriever in memory; whoever is answered by it holds it."""

    uri: str  # models:/NAME/VERSION, or models:/MODEL_ID
    run_id: str
    made_at: datetime
    held: Held
    loaded_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def age_s(self) -> float:
        """Seconds since its ads were last changed."""
        return (datetime.now(UTC) - self.made_at).total_seconds()

    def __str__(self) -> str:
        made = self.made_at.isoformat(" ", "minutes").removesuffix("+00:00")
        return f"{self.uri} ({self.held.num_ads} ads, made {made} UTC by run {self.run_id})"

    def described(self) -> dict[str, Any]:
        """Say which retriever it is, as JSON."""
        name, _, version = self.uri.removeprefix("models:/").rpartition("/")
        return {
            "model": self.uri,
            "name": name or None,
            "version": version if name else None,
            "run": self.run_id,
            "ads": self.held.num_ads,
            "columns": self.held.columns,
            "age_s": round(self.age_s),
            "loaded_at": self.loaded_at.isoformat(timespec="seconds"),
        }


class Following:
    """Holds the version that a URI names, and loads another once its alias names that.

    Attributes:
        served: replaced as a whole, by one thread.
        columns: the columns that requests have filtered by.
    """

    def __init__(
        self,
        registry: Registry,
        model_uri: str,
        figures: Figures,
        hold: Callable[[str], Held] | None = None,
    ) -> None:
        """Load the retriever, by default into this process, or raise its errors."""
        self.registry = registry
        self.hold = hold or partial(Held, registry)
        self.model_uri = model_uri
        self.figures = figures
        self.columns = set[str]()
        self.served = self._load(registry.pinned(model_uri))
        figures.serve(self.served.described())
        self._refused: str | None = None
        self._fault: str | None = None
        self._retired: Callable[[], object] = lambda: None  # what was held before, until it is gone

    def look(self) -> None:
        """Serve the version that the alias names now, unless it is refused, with a line."""
        try:
            self._look()
            self._fault = None
        except Exception as error:  # such as a store that is away: it is asked again
            if (fault := first_line_of(error)) != self._fault:
                logger.warning("still serving %s: %s", self.served.uri, fault)
            self._fault = fault

    def _look(self) -> None:
        uri = self.registry.pinned(self.model_uri)
        if uri == self._refused:
            return
        self._refused = None
        if uri == self.served.uri or self._retired() is not None:
            return
        try:
            self._take_over(uri)
        except (BusyError, TrackingError):
            raise
        except Exception as error:  # of any library that loads it, or answers
            self._refused = uri
            self.figures.refused_loads.inc()
            fault = first_line_of(error)
            logger.warning("refused %s, still serving %s: %s", uri, self.served.uri, fault)

    def _take_over(self, uri: str) -> None:
        before = self.served
        after = self._load(uri)
        if 2 * after.held.num_ads < before.held.num_ads:
            raise RegistryError(
                f"it has {after.held.num_ads} ads, fewer than half of {before.held.num_ads}"
            )
        if lost := self.columns.difference(after.held.columns):
            raise RegistryError(f"requests filter by {', '.join(sorted(lost))}, which it lacks")
        self.served = after
        self._retired = weakref.ref(before.held)
        self.figures.serve(after.described())
        logger.info("serving: %s in place of %s", str(after), before.uri)
        del before
        gc.unfreeze()  # the first retriever was frozen with all that there was at the start
        gc.collect()  # what is held in circles

    def _load(self, uri: str) -> Served:
        logged = self.registry.look_up(uri)
        return Served(uri, logged.run_id, logged.made_at, self.hold(uri))
