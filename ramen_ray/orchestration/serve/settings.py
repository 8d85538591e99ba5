"""What a user may set of a server, as flags of its command too, and the port that it takes."""

import socket
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ramen_ray.config import ConfigError, Positive, PositiveFloat, Section

Log = Literal["minutes", "requests", "queries"]


class ServerSettings(Section):
    """How a server answers, wherever it listens."""

    follow_s: PositiveFloat = 5.0
    """Seconds between looks at the version that has the alias; a new one is served from then on."""
    log: Log = "minutes"
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
    def _check_replicas(self) -> "ServerSettings":
        if self.fewest_replicas > self.replicas:
            raise ValueError(
                f"min_replicas {self.min_replicas} are more than {self.replicas} replicas"
            )
        return self

    @property
    def fewest_replicas(self) -> int:
        """Return how many run at least."""
        return self.min_replicas or self.replicas


def listening_at(host: str, port: int) -> socket.socket:
    """Take a port, or any free one if it is 0; raises a ConfigError if that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {reason}; give another --host or --port"
        ) from error
