"""Where a server is, and how to prove who asks."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.client._errors import InvalidArgument

# Scheme -> Triton's port for it, and how far its metrics port is from there.
_PORTS = {"grpc": (8001, 1), "grpcs": (8001, 1), "http": (8000, 2), "https": (8000, 2)}
_WEB = {"http": 80, "https": 443}
_LABEL = r"[\w-]{1,63}"
_ADDRESS = re.compile(
    rf"((?P<scheme>\w+)://)?(?P<host>{_LABEL}(\.{_LABEL})*\.?|\[[\w:.%]+\])"
    r"(:(?P<port>[0-9]+))?(?P<path>/[^?#]*|)"
)
_PRINTABLE = frozenset(map(chr, range(0x20, 0x7F)))

GRPC_MESSAGE_BYTES = 64 << 20
# A body of more than about 4 MB crashes Triton's HTTP frontend up to release 25.08: it keeps a list on
# its stack (triton-inference-server/server#5840, mended in #8411). 24.10 took 4 MB and died of 8.
HTTP_REQUEST_BYTES = 4 << 20


@dataclass(frozen=True)
class Tls:
    """How to know the server, and where it asks for it, oneself: paths of PEM files.

    Without `ca` the system's authorities are trusted. `certificate` and `key` go together.
    """

    ca: Path | str | None = None
    certificate: Path | str | None = None
    key: Path | str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgument("tls: found one of certificate and key, expected both or none")

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return authorities, key and certificate chain, in gRPC's order."""
        ca, key, certificate = (_read(path) for path in (self.ca, self.key, self.certificate))
        return ca, key, certificate

    def context(self) -> ssl.SSLContext:
        """Return the same for sockets."""
        self.pem()  # a missing file is then named
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate and self.key:
                context.load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, OSError) as error:
            raise InvalidArgument(f"tls: found certificates that cannot be used: {error}") from None
        return context


@dataclass(frozen=True)
class Endpoint:
    """A server's address, with what every request to it carries."""

    scheme: str
    host: str
    port: int
    # Names in lower case. Secrets: never shown.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Tls = field(default_factory=Tls, repr=False)
    metrics_url: str = ""
    # Of one message, in either direction; None: the protocol's default.
    max_message_bytes: int | None = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"

    @property
    def is_http(self) -> bool:
        return self.scheme.startswith("http")

    @property
    def always_streams(self) -> bool:
        """Whether whole answers are streamed too.

        Triton (24.10) never lets go of a request whose HTTP caller hangs up before the first response,
        so that it takes all of its exit timeout to stop. The sooner one comes, the rarer that is.
        """
        return self.is_http

    @property
    def is_encrypted(self) -> bool:
        return self.scheme.endswith("s")

    def for_metrics(self) -> Endpoint:
        """Return the endpoint of the metrics; secrets go along to the same host only, never unencrypted."""
        scheme, host, port = "http", self.host, self.port + _PORTS[self.scheme][1]
        if self.metrics_url:
            scheme, host, port = _parse(self.metrics_url, _WEB, path="metrics")
        trusted = host == self.host and (scheme == "https" or not self.is_encrypted)
        return Endpoint(scheme, host, port, self.headers if trusted else {}, self.tls)

    def check_size(self, size_bytes: int) -> None:
        """Raise InvalidArgument for a request too large to be sent."""
        limit = self.max_message_bytes or (HTTP_REQUEST_BYTES if self.is_http else GRPC_MESSAGE_BYTES)
        if size_bytes > limit:
            raise InvalidArgument(
                f"prompt: found a request of {size_bytes} bytes, expected at most {limit}; shorten it"
                + ("" if self.is_http else " or allow more with max_message_bytes")
            )


def endpoint(
    url: str,
    *,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    tls: Tls | None = None,
    metrics_url: str | None = None,
    max_message_bytes: int | None = None,
) -> Endpoint:
    """Return the endpoint that a caller described.

    Raises:
        InvalidArgument: for what is no address or no header; the message holds no secret.
    """
    scheme, host, port = _parse(url, {name: port for name, (port, _) in _PORTS.items()})
    if tls is not None and not scheme.endswith("s"):
        raise InvalidArgument(f"{scheme}://{host}: found tls, which {scheme} has not; use {scheme}s://")
    if max_message_bytes is not None and max_message_bytes < 1:
        raise InvalidArgument(f"max_message_bytes: found {max_message_bytes}, expected a positive number")
    if metrics_url is not None:
        _parse(metrics_url, _WEB, path="metrics")
    sent = {**(headers or {}), **({} if api_key is None else {"authorization": f"Bearer {api_key}"})}
    return Endpoint(scheme, host, port, _checked(sent), tls or Tls(), metrics_url or "", max_message_bytes)


def _parse(url: str, ports: Mapping[str, int], *, path: str = "") -> tuple[str, str, int]:
    """Return scheme, host and port of "host", "host:port" or "scheme://host:port".

    `ports`: the schemes there are, with their default ports. `path`: what may follow.
    """
    if "@" in url:
        raise InvalidArgument(
            "url (not shown): found a name or password in the url, where logs would show it; pass api_key "
            "or headers"
        )
    shown = re.split("[?#]", url)[0]
    found = "no address" if shown == url else "a query or fragment (not shown)"
    expected = ", ".join(f"{scheme}://host:port" for scheme in ports)
    wrong = InvalidArgument(
        f"{shown!r}: found {found}, expected host:port or one of {expected}; "
        "Triton's ports are 8001 for gRPC, 8000 for HTTP and 8002 for metrics unless they were changed"
    )
    parts = _ADDRESS.fullmatch(url)
    if parts is None:
        raise wrong
    scheme = (parts["scheme"] or next(iter(ports))).lower()
    if scheme not in ports or parts["path"].strip("/") not in ("", path):
        raise wrong
    port = int(parts["port"] or ports[scheme])
    if not 0 < port < 1 << 16:
        raise wrong
    return scheme, parts["host"].strip("[]").lower(), port


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers in lower case; gRPC and http.client would print values that they refuse."""
    for name, value in headers.items():
        if not isinstance(value, str) or not set(value) <= _PRINTABLE:
            raise InvalidArgument(
                f"header {name!r}: found a value that is no printable ASCII (not shown); is there a "
                "line break at its end?"
            )
        if not name or not set(name) <= _PRINTABLE - set(' :,;"()[]{}<>@/\\?='):
            raise InvalidArgument(f"header {name!r}: found no header's name, expected letters, digits and -")
    return {name.lower(): value for name, value in headers.items()}


def _read(path: Path | str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"tls: {path}: cannot be read: {error.strerror}") from None
