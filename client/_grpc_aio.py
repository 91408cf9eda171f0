"""The gRPC transport for the tasks of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtspec.client._codec import encode, read_metadata
from trtspec.client._endpoint import Endpoint
from trtspec.client._errors import CallFailed
from trtspec.client._failures import Call
from trtspec.client._grpc import HANG_UP_S, channel_options, checked, credentials, failure, read
from trtspec.client._metadata import Metadata
from trtspec.client._questions import MetricsPort
from trtspec.client._transport import Health, InferRequest, InferResponse


class AioGrpcTransport:
    """As GrpcTransport; belongs to the event loop in which it is first used."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._headers = tuple(endpoint.headers.items())
        self._metrics = MetricsPort(endpoint)
        self._channel: Any = None
        self._stub: Any = None
        self._closed = False

    def stream(self, request: InferRequest) -> AioGrpcResponses:
        message = checked(encode(request), self._endpoint)
        called = Call(self._endpoint.address, request.id, request.timeout_s)
        call = self._open(called).ModelStreamInfer(
            iter((message,)), timeout=request.left_s, metadata=self._headers
        )
        return AioGrpcResponses(called, call, lambda: self._closed)

    async def metadata(self, model: str, timeout_s: float | None) -> Metadata:
        given: Any = {"timeout": timeout_s, "metadata": self._headers}
        called = Call(self._endpoint.address, timeout_s=timeout_s)
        stub = self._open(called)
        server, described, config = await self._answers(
            called,
            stub.ServerMetadata(service_pb2.ServerMetadataRequest(), **given),
            stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=model), **given),
            stub.ModelConfig(service_pb2.ModelConfigRequest(name=model), **given),
        )
        return read_metadata(server, described, config.config)

    async def health(self, model: str, timeout_s: float | None) -> Health:
        given: Any = {"timeout": timeout_s, "metadata": self._headers}
        called = Call(self._endpoint.address, timeout_s=timeout_s)
        try:
            stub = self._open(called)
            live, ready, model_ready = await self._answers(
                called,
                stub.ServerLive(service_pb2.ServerLiveRequest(), **given),
                stub.ServerReady(service_pb2.ServerReadyRequest(), **given),
                stub.ModelReady(service_pb2.ModelReadyRequest(name=model), **given),
            )
        except CallFailed:
            return Health()
        return Health(live.live, ready.ready, model_ready.ready)

    async def metrics(self, timeout_s: float | None) -> str:
        return await asyncio.to_thread(self._metrics.read, timeout_s)

    async def close(self) -> None:
        """Close the connection; answers still under way are cancelled."""
        self._closed = True
        self._metrics.close()
        if self._channel is not None:
            await self._channel.close()

    async def _answers(self, called: Call, *questions: Any) -> list[Any]:
        """Return the answers to questions that are asked all at once, so that they share the time."""
        try:
            return await asyncio.gather(*questions)
        except grpc.RpcError as error:
            raise failure(called, error, closed=self._closed) from None
        except asyncio.CancelledError:
            # Also what gRPC raises in a task that nobody cancelled, when the call was.
            if self._closed:
                raise called.client_closed() from None
            raise

    def _open(self, called: Call) -> Any:
        if self._closed:
            raise called.client_closed()
        # gRPC ties a channel to the loop that runs when it is made.
        if self._stub is None:
            address, options = self._endpoint.address, channel_options(self._endpoint)
            if self._endpoint.is_encrypted:
                self._channel = grpc.aio.secure_channel(address, credentials(self._endpoint), options)
            else:
                self._channel = grpc.aio.insecure_channel(address, options)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._stub


class AioGrpcResponses:
    """The responses of one call."""

    def __init__(self, called: Call, call: Any, is_client_closed: Callable[[], bool]) -> None:
        self._called = called
        self._call = call
        self._is_client_closed = is_client_closed
        self._begun = False
        self._closed = False

    def __aiter__(self) -> AioGrpcResponses:
        return self

    async def __anext__(self) -> InferResponse:
        message = await self._read()
        if message.error_message:
            await self._hang_up()
            raise self._called.failure("", message.error_message, begun=self._begun)
        self._begun = True
        response = read(message.infer_response, self._called)
        if response.final:
            await self._hang_up()
        return response

    def close(self) -> None:
        self._closed = True
        self._call.cancel()

    async def _read(self) -> Any:
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            closed = self._is_client_closed()
            raise failure(self._called, error, begun=self._begun, closed=closed) from None
        except asyncio.CancelledError:
            # Also what gRPC raises in a task that nobody cancelled, when the call was.
            if self._closed:
                raise StopAsyncIteration from None
            if self._is_client_closed():
                raise self._called.client_closed(begun=self._begun) from None
            raise
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message

    async def _hang_up(self) -> None:
        """Wait for the server to end the call; see GrpcResponses."""
        ended = asyncio.Event()
        self._call.add_done_callback(lambda _: ended.set())
        try:
            await asyncio.wait_for(ended.wait(), HANG_UP_S)
        except asyncio.TimeoutError:
            self._call.cancel()
