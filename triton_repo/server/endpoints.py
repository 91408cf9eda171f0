"""Where a server listens, and the check that nobody else listens there."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import ExitStack
from dataclasses import dataclass

from trtspec.errors import ServerError

BACKLOG = 1


@dataclass(frozen=True)
class Endpoints:
    """One address and the three ports of a server."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int

    @property
    def reachable_host(self) -> str:
        """The address a client on this machine connects to; 0.0.0.0 is only an address to listen on."""
        return "127.0.0.1" if self.host == "0.0.0.0" else self.host

    @property
    def grpc_url(self) -> str:
        """host:port, as gRPC clients take it."""
        return f"{self.reachable_host}:{self.grpc_port}"

    @property
    def http_url(self) -> str:
        return f"http://{self.reachable_host}:{self.http_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self.reachable_host}:{self.metrics_port}/metrics"


def choose_endpoints(host: str, *, http_port: int, grpc_port: int, metrics_port: int) -> Endpoints:
    """Return the endpoints with every 0 replaced by a free port.

    Raises:
        ServerError: names every port that cannot be used, not only the first.
    """
    address = _ipv4(host)
    wanted = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
    chosen: dict[str, int] = {}
    clashes: list[str] = []
    with ExitStack() as held:  # all are held until all are chosen, so that no two are equal
        for name, port in wanted.items():
            listener = held.enter_context(socket.socket())
            # As servers do: a port whose last connections are still closing is free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
                listener.listen(BACKLOG)
            except OSError as error:
                clashes.append(f"{name} port {port}: {error.strerror}")
            else:
                chosen[f"{name}_port"] = listener.getsockname()[1]
    if clashes:
        raise ServerError(
            f"{address}: {'; '.join(clashes)}; stop what listens there, or pass --http-port, --grpc-port "
            "and --metrics-port (0 picks a free one)"
        )
    return Endpoints(host=address, **chosen)


def _ipv4(host: str) -> str:
    if host == "localhost":
        return "127.0.0.1"
    try:
        return str(ipaddress.IPv4Address(host))
    except ipaddress.AddressValueError:
        raise ServerError(
            f"host {host!r}: found neither an IPv4 address of this machine nor 'localhost'; "
            "pass 127.0.0.1 (this machine only) or 0.0.0.0 (every interface)"
        ) from None
