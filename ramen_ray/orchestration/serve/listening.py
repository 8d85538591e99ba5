"""The port of a server, taken before what takes long."""

import socket

from ramen_ray.config import ConfigError


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
