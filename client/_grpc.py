"""The transport over gRPC: one call for each answer, with a deadline and a cancellation of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtspec.client._codec import decode, encode, is_final, read_metadata
from trtspec.client._endpoint import GRPC_MESSAGE_BYTES, Endpoint
from trtspec.client._failures import Call
from trtspec.client._metadata import Metadata
from trtspec.client._questions import MetricsPort
from trtspec.client._transport import Health, InferRequest, InferResponse

# How long a server may take to end a call whose last response it has sent.
HANG_UP_S = 1.0
CLOSE_S = 2.0


class GrpcTransport:
    """Speaks Triton's gRPC protocol to one server; one connection, shared by all threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._headers = tuple(endpoint.headers.items())
        options = channel_options(endpoint)
        if endpoint.is_encrypted:
            self._channel = grpc.secure_channel(endpoint.address, credentials(endpoint), options)
        else:
            self._channel = grpc.insecure_channel(endpoint.address, options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metrics = MetricsPort(endpoint)
        self._closed = False

    def stream(self, request: InferRequest) -> GrpcResponses:
        message = checked(encode(request), self._endpoint)
        called = Call(self._endpoint.address, request.id, request.timeout_s)
        try:
            call = self._stub.ModelStreamInfer(
                iter((message,)), timeout=request.left_s, metadata=self._headers
            )
        except ValueError as error:
            raise failure(called, error, closed=self._closed) from None
        return GrpcResponses(called, call, lambda: self._closed)

    def metadata(self, model: str, timeout_s: float | None) -> Metadata:
        given: Any = {"timeout": timeout_s, "metadata": self._headers}
        try:
            # All at once, so that they share the time.
            server = self._stub.ServerMetadata.future(service_pb2.ServerMetadataRequest(), **given)
            described = self._stub.ModelMetadata.future(service_pb2.ModelMetadataRequest(name=model), **given)
            config = self._stub.ModelConfig.future(service_pb2.ModelConfigRequest(name=model), **given)
            return read_metadata(server.result(), described.result(), config.result().config)
        except (grpc.RpcError, ValueError) as error:
            called = Call(self._endpoint.address, timeout_s=timeout_s)
            raise failure(called, error, closed=self._closed) from None

    def health(self, model: str, timeout_s: float | None) -> Health:
        given: Any = {"timeout": timeout_s, "metadata": self._headers}
        try:
            live = self._stub.ServerLive.future(service_pb2.ServerLiveRequest(), **given)
            ready = self._stub.ServerReady.future(service_pb2.ServerReadyRequest(), **given)
            model_ready = self._stub.ModelReady.future(service_pb2.ModelReadyRequest(name=model), **given)
            return Health(live.result().live, ready.result().ready, model_ready.result().ready)
        except (grpc.RpcError, ValueError):
            return Health()

    def metrics(self, timeout_s: float | None) -> str:
        return self._metrics.read(timeout_s)

    def close(self) -> None:
        """Close the connection; answers still under way are cancelled.

        Bounded: an interrupt that comes between gRPC's taking a lock of its own and its guarding it leaves
        the lock taken, and closing would wait for it for ever.
        """
        self._closed = True
        self._metrics.close()
        closing = threading.Thread(target=self._channel.close, name="close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


class GrpcResponses:
    """The responses of one call."""

    def __init__(self, called: Call, call: Any, is_client_closed: Callable[[], bool]) -> None:
        self._called = called
        self._call = call
        self._is_client_closed = is_client_closed
        self._begun = False

    def __iter__(self) -> GrpcResponses:
        return self

    def __next__(self) -> InferResponse:
        try:
            message = next(self._call)
        except grpc.RpcError as error:
            closed = self._is_client_closed()
            raise failure(self._called, error, begun=self._begun, closed=closed) from None
        if message.error_message:
            self._hang_up()
            raise self._called.failure("", message.error_message, begun=self._begun)
        self._begun = True
        response = read(message.infer_response, self._called)
        if response.final:
            self._hang_up()
        return response

    def close(self) -> None:
        self._call.cancel()

    def _hang_up(self) -> None:
        """Wait for the server to end the call, which it does at once: we said all when we asked.

        Cancelling a call that is about to end is what Triton logs as an internal error.
        """
        ended = threading.Event()
        if self._call.add_callback(ended.set):
            ended.wait(HANG_UP_S)
        self._call.cancel()


def channel_options(endpoint: Endpoint) -> list[tuple[str, int]]:
    limit = endpoint.max_message_bytes or GRPC_MESSAGE_BYTES
    return [
        # Requests are measured before they are sent, for an error that says what to do.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", limit),
        # gRPC's own back-off grows to two minutes, in which a server that is up again counts as down.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]


def credentials(endpoint: Endpoint) -> Any:
    return grpc.ssl_channel_credentials(*endpoint.tls.pem())


def checked(message: Any, endpoint: Endpoint) -> Any:
    endpoint.check_size(message.ByteSize())
    return message


def read(message: Any, called: Call) -> InferResponse:
    """Return a ModelInferResponse as a value; StreamBroken when it contradicts itself."""
    try:
        return InferResponse(decode(message), is_final(message))
    except (ValueError, TypeError) as error:
        raise called.nonsense(f"a response that contradicts itself ({error})") from None


def failure(called: Call, error: Any, *, begun: bool = False, closed: bool = False) -> Exception:
    """Return what a grpc.RpcError means; any error, when the client was closed before it."""
    if closed:
        return called.client_closed(begun=begun)
    if not isinstance(error, grpc.RpcError):
        return error  # type: ignore[no-any-return]
    status, words = error.code().name, error.details() or ""
    if status == "RESOURCE_EXHAUSTED" and "larger than max" in words:
        return called.too_large()
    return called.failure(status, words, begun=begun)
