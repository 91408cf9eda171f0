"""Sockets whose every wait has a limit, and which another thread can shut down from the first on."""

from __future__ import annotations

import errno
import http.client
import io
import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

# How long the next wait may be, None for ever; raises TimeoutError when there may be none.
Left = Callable[[], float | None]


def left_of(allowed_s: float | None) -> Left:
    """Return what says how much is left of a time that begins now."""
    end = None if allowed_s is None else time.monotonic() + allowed_s

    def left_s() -> float | None:
        if end is None:
            return None
        if (left := end - time.monotonic()) <= 0:
            raise TimeoutError
        return left

    return left_s


def dial(
    host: str, port: int, context: ssl.SSLContext | None, left_s: Left, hold: Callable[[socket.socket], None]
) -> socket.socket:
    """Return a socket that is connected to the first of the host's addresses that takes it.

    Unlike socket.create_connection, nothing waits on a socket that nobody else can reach. Looking up a
    name is the system's, which neither limits it nor can be woken.

    Args:
        context: for an encrypted connection.
        hold: takes each socket before it is waited for; may raise.
    """
    failed = OSError(f"{host}: found no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connecting = socket.socket(family, kind, protocol)
        try:
            _connect(connecting, address, left_s, hold)
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connecting if context is None else _encrypted(connecting, host, context, left_s, hold)
        except BaseException as error:
            connecting.close()
            if not isinstance(error, OSError):
                raise
            failed = error
    raise failed


class Line:
    """What http.client needs of a socket, with a limit to each of its waits and not to the first alone."""

    def __init__(self, connected: socket.socket, left_s: Left) -> None:
        self.connected = connected
        self.left_s = left_s

    def sendall(self, data: bytes) -> None:
        self.limit_wait()
        self.connected.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self))

    def is_quiet(self) -> bool:
        """Whether the server has neither closed it nor sent what nobody asked for."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.connected, selectors.EVENT_READ)
            return not selector.select(0)

    def limit_wait(self) -> None:
        self.connected.settimeout(self.left_s())

    def close(self) -> None:
        self.connected.close()


def line_of(connection: http.client.HTTPConnection) -> Line | None:
    """Return what a connection has for a socket; None before it is made, and after."""
    return cast("Line | None", connection.sock)


class _Incoming(io.RawIOBase):
    """What comes over a line."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._raw = line.connected.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int | None:
        self._line.limit_wait()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _connect(
    connecting: socket.socket, address: object, left_s: Left, hold: Callable[[socket.socket], None]
) -> None:
    connecting.setblocking(False)
    # Begun before it is held: a shutdown ends a connection that is being made, and none that is yet to be.
    error = connecting.connect_ex(address)  # type: ignore[arg-type]
    hold(connecting)
    if error in (errno.EINPROGRESS, errno.EWOULDBLOCK):
        with selectors.DefaultSelector() as selector:
            selector.register(connecting, selectors.EVENT_WRITE)
            if not selector.select(left_s()):
                raise TimeoutError
        error = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))


def _encrypted(
    connected: socket.socket,
    host: str,
    context: ssl.SSLContext,
    left_s: Left,
    hold: Callable[[socket.socket], None],
) -> socket.socket:
    wrapped = context.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
    try:
        hold(wrapped)
        wrapped.settimeout(left_s())
        wrapped.do_handshake()
    except BaseException:
        wrapped.close()
        raise
    return wrapped
