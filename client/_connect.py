"""The transport for an address. Each is imported when it is wanted."""

from __future__ import annotations

from trtspec.client._endpoint import Endpoint
from trtspec.client._transport import AsyncTransport, Transport


def connect(endpoint: Endpoint) -> Transport:
    if endpoint.is_http:
        from trtspec.client._http import HttpTransport

        return HttpTransport(endpoint)
    from trtspec.client._grpc import GrpcTransport

    return GrpcTransport(endpoint)


def connect_async(endpoint: Endpoint) -> AsyncTransport:
    if endpoint.is_http:
        from trtspec.client._http import HttpTransport
        from trtspec.client._threads import ThreadedTransport

        return ThreadedTransport(HttpTransport(endpoint))
    from trtspec.client._grpc_aio import AioGrpcTransport

    return AioGrpcTransport(endpoint)
