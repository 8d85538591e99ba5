"""Answer queries over HTTP with a retriever, until it is stopped.

Examples:
    python jobs/serve.py --model models:/shop@champion
    python jobs/serve.py --model models:/shop@champion --port 5002 --output /data/outputs

Before you open the port to others: docs/reference/security.md.
"""

import gc
import os
import shlex
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ramen_ray.command_line import ModelSettings, parse_settings, run_job
from ramen_ray.config import ConfigError
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.serve.settings import ServerSettings, listening_at

if TYPE_CHECKING:
    from ray.serve import Application

    from ramen_ray.orchestration.serve.held import Held
    from ramen_ray.tracking.registry import Registry

SECONDS_TO_END = 3.0  # that threads have


class AnswerSettings(ServerSettings, ModelSettings):
    """How a server answers with a retriever, wherever it listens."""

    def registry(self) -> "Registry":
        """Open the store and look the retrievers up, or raise its errors."""
        registry = super().registry()
        if self.shadow:
            registry.look_up(self.shadow)
        return registry


class ServeSettings(AnswerSettings):
    """Answer queries over HTTP with a retriever."""

    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 lets other machines in."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 5001
    """Port to listen at."""


def main() -> None:
    """Load the retriever, and answer."""
    settings = parse_settings(ServeSettings, __doc__)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # a thread that waits takes no core
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
    with replicas(registry, settings.model, settings) as hold:
        _serve(settings, registry, listening, hold)


def _serve(
    settings: ServeSettings,
    registry: "Registry",
    listening: socket.socket,
    hold: Callable[[str], "Held"] | None,
) -> None:
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.serve.exchanges import server_of
        from ramen_ray.orchestration.serve.server import app_of
    with logged_progress(f"loading {settings.model}"):
        app = app_of(registry, settings.model, settings, hold)
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
    return application_of(store, settings.model, settings)


if __name__ == "__main__":
    run_job(main, SECONDS_TO_END)
