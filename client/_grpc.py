"""The transport over gRPC: one call for each answer, with a deadline and a cancellation of its own."""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import urlsplit

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtspec.client._codec import decode, encode, is_final
from trtspec.client._errors import (
    CallFailed,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArgument,
    RequestRefused,
    ServerFailed,
    StreamBroken,
)
from trtspec.client._transport import Health, InferRequest, InferResponse

DEFAULT_PORT = 8001
MAX_MESSAGE_BYTES = 64 << 20

_CHANNEL = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # gRPC's own back-off grows to two minutes, in which a server that is up again counts as down.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
# How our public model begins the message of what went wrong on its side. Triton could end a failed
# stream with a status instead (`triton_grpc_error`), but doing so crashed servers up to release 26.03
# (a use after free in the gRPC frontend, triton-inference-server/server#8708).
_FAILED = "failed: "

_REFUSALS = {
    *("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("FAILED_PRECONDITION", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED"),
}
# The connection's fault, or someone's who cancelled the call: the server never said that it failed.
_CONNECTION = {"UNAVAILABLE", "CANCELLED"}


class GrpcTransport:
    """Speaks Triton's gRPC protocol to one server; one connection, shared by all threads."""

    def __init__(self, url: str) -> None:
        self.address = parse_url(url)
        self._channel = grpc.insecure_channel(self.address, options=_CHANNEL)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def stream(self, request: InferRequest) -> GrpcResponses:
        call = self._stub.ModelStreamInfer(iter((encode(request),)), timeout=request.timeout_s)
        return GrpcResponses(self.address, request, call)

    def health(self, model: str, timeout_s: float) -> Health:
        """Ask the server whether it lives and is ready; an unanswered question counts as no."""
        try:
            live = self._stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=timeout_s).live
            ready = self._stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=timeout_s).ready
            question = service_pb2.ModelReadyRequest(name=model)
            return Health(live, ready, self._stub.ModelReady(question, timeout=timeout_s).ready)
        except grpc.RpcError:
            return Health()

    def close(self) -> None:
        """Close the connection; answers still under way are cancelled."""
        self._channel.close()


class GrpcResponses:
    """The responses of one call."""

    def __init__(self, address: str, request: InferRequest, call: Any) -> None:
        self._address = address
        self._request = request
        self._call = call
        self._begun = False

    def __iter__(self) -> GrpcResponses:
        return self

    def __next__(self) -> InferResponse:
        try:
            message = next(self._call)
        except grpc.RpcError:
            raise self._failure(self._call.code().name, self._call.details() or "") from None
        if message.error_message:
            self._hang_up()
            raise self._failure("", message.error_message)
        self._begun = True
        final = is_final(message.infer_response)
        if final:
            self._hang_up()
        return InferResponse(decode(message.infer_response), final)

    def close(self) -> None:
        self._call.cancel()

    def _hang_up(self) -> None:
        """Wait for the server to end the call, which it does at once: we said all when we asked.

        Cancelling a call that is about to end is what Triton logs as an internal error.
        """
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass

    def _failure(self, status: str, details: str) -> CallFailed:
        kind, message = _explain(status, details, begun=self._begun)
        if kind is DeadlineExceeded:
            message = f"the answer was not whole after {self._request.timeout_s:g} s; {message}"
        text = f"{self._address}: {message} (request {self._request.id})"
        return kind(text, request_id=self._request.id, status=status)


def parse_url(url: str) -> str:
    """Return the host:port of "host", "host:port" or "grpc://host:port"."""
    parts = urlsplit(url if "://" in url else f"grpc://{url}")
    try:
        port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:
        port = 0
    if parts.scheme != "grpc" or not parts.hostname or not port or parts.path.strip("/") or parts.query:
        raise InvalidArgument(
            f"{url!r}: found no gRPC address, expected host:port or grpc://host:port; "
            f"Triton's gRPC port is {DEFAULT_PORT} unless it was changed"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"


def _explain(status: str, details: str, *, begun: bool) -> tuple[type[CallFailed], str]:
    """Return the kind of error and what to say; `begun`: a response had come before."""
    if status == "DEADLINE_EXCEEDED":
        return DeadlineExceeded, "ask for fewer tokens or allow more with timeout_s"
    if status in _CONNECTION and begun:
        return StreamBroken, f"the answer broke off: {details}; ask again if the server is well"
    if status in _CONNECTION:
        return ConnectionFailed, f"no server took the request: {details}; is `trtspec serve` running there?"
    failed = begun or details.startswith(_FAILED)
    if status in _REFUSALS or (not status and not failed):
        return RequestRefused, f"refused: {details.removeprefix('refused: ')}"
    return ServerFailed, f"the server failed: {details.removeprefix(_FAILED)}; look into its log"
