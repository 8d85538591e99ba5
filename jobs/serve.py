"""Answer queries over HTTP with a retriever, until it is stopped.

Examples:
    python jobs/serve.py --model models:/shop@champion
    python jobs/serve.py --model models:/shop@champion --port 5002 --output /data/outputs

Before you open the port to others: docs/reference/security.md.
"""

import gc
import shlex
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from ramen_ray.command_line import ModelSettings, parse_settings, run_job
from ramen_ray.config import ConfigError, Positive, PositiveFloat
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.serve.listening import listening_at

if TYPE_CHECKING:
    from ray.serve import Application

    from ramen_ray.orchestration.serve.held import Held
    from ramen_ray.orchestration.serve.server import ServerSettings
    from ramen_ray.tracking.registry import Registry

SECONDS_TO_END = 3.0  # that threads have


class AnswerSettings(ModelSettings):
    """How a server answers, wherever it listens."""

    follow_s: PositiveFloat = 5.0
    """Seconds between looks at the version that has the alias; a new one is served from then on."""
    log: Literal["minutes", "requests", "queries"] = "minutes"
    """What is logged: a line for each minute with requests, also one of JSON for each request, or
    with its queries."""
    page: bool = True
    """Whether / is a page to ask by, which says why an ad answers, by texts of the training."""
    replicas: Positive = 1
    """Processes that answer, on the machines of the Ray cluster; 1 answers in this process."""
    min_replicas: Positive | None = None
    """Fewest of them, which stay when few requests come; None keeps all."""
    shards: Annotated[int, Field(ge=0)] = 0
    """Parts of the index, for one that is larger than a process: each has a process of its own,
    which the replicas ask; 0 leaves it whole."""
    shadow: str | None = None
    """A challenger, such as models:/shop@challenger, beside which the page shows the answers."""
    shadow_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the requests that it is asked too, after the client has its answer; for figures."""

    @model_validator(mode="after")
    def _check_replicas(self) -> "AnswerSettings":
        if self.min_replicas and self.min_replicas > self.replicas:
            raise ValueError(
                f"min_replicas {self.min_replicas} are more than {self.replicas} replicas"
            )
        return self

    def registry(self) -> "Registry":
        """Open the store and look the retrievers up, or raise its errors."""
        registry = super().registry()
        if self.shadow:
            registry.look_up(self.shadow)
        return registry

    def server(self, hold: Callable[[str], "Held"] | None = None) -> "ServerSettings":
        """Return what the server is told; ``hold`` loads a version elsewhere."""
        from ramen_ray.orchestration.serve.server import ServerSettings

        return ServerSettings(
            follow_s=self.follow_s,
            log=self.log,
            has_page=self.page,
            shadow=self.shadow,
            shadow_share=self.shadow_share,
            replicas=self.replicas,
            min_replicas=self.min_replicas,
            shards=self.shards,
            hold=hold,
        )


class ServeSettings(AnswerSettings):
    """Answer queries over HTTP with a retriever."""

    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 lets other machines in."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 5001
    """Port to listen at."""


def main() -> None:
    """Load the retriever, and answer."""
    settings = parse_settings(ServeSettings, __doc__)
    listening = listening_at(settings.host, settings.port)
    registry = settings.registry()
    if settings.replicas == 1 and not settings.shards:
        _serve(settings, registry, listening, None)
        return
    try:
        from ramen_ray.orchestration.serve.replicas import replicas
    except ImportError as error:
        raise ConfigError(
            f"{error}; --replicas and --shards need: pip install -e '.[serve]'"
        ) from error
    with replicas(registry, settings.model, settings.server()) as hold:
        _serve(settings, registry, listening, hold)


def _serve(
    settings: ServeSettings,
    registry: "Registry",
    listening: socket.socket,
    hold: Callable[[str], "Held"] | None,
) -> None:
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.serve.connections import server_of
        from ramen_ray.orchestration.serve.server import app_of
    with logged_progress(f"loading {settings.model}"):
        app = app_of(registry, settings.model, settings.server(hold))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{settings.port}"
    print(f"serving: {app.state.following.served} at {url}")
    print(
        f"ask:     curl --silent --header 'Content-Type: application/json' "
        f"{shlex.quote(f'{url}/invocations')} "
        """--data '{"inputs": ["a query"], "params": {"top_k": 3}}'"""
    )
    if settings.page:
        print(f"page:    {url}/")
    sys.stdout.flush()
    gc.freeze()  # what stays is not looked through again
    server_of(app).run(sockets=[listening])


def application(settings: AnswerSettings) -> "Application":
    """Describe the same server to Ray Serve, as ``args`` that are the flags."""
    from ramen_ray.orchestration.serve.replicas import application_of

    store = settings.registry().uri
    return application_of(store, settings.model, settings.server())


if __name__ == "__main__":
    sys.exit(run_job(main, SECONDS_TO_END))
