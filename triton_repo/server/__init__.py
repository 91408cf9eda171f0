"""Start a Triton server, wait until it has answered, stop it, and leave nothing behind."""

from trtspec.triton_repo.server.server import DEFAULTS, FREE_PORTS, ServeOptions, Server, serve

__all__ = ["DEFAULTS", "FREE_PORTS", "ServeOptions", "Server", "serve"]
