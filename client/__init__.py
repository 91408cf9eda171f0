"""What applications import: ask a running server, and read what comes back.

    from trtspec.client import Client

    with Client("localhost:8001") as client:
        print(client.generate("def main(", max_tokens=32).text)
        with client.stream("def main(", stop_words="\\n\\n") as stream:
            for delta in stream:
                print(delta.text, end="", flush=True)

AsyncClient has the same methods with await. Needs numpy and tritonclient, nothing else.
`trtspec.client.verify` compares served answers with a reference and is imported on its own.
"""

from trtspec.client._async_client import AsyncClient
from trtspec.client._client import Client
from trtspec.client._endpoint import Tls
from trtspec.client._errors import (
    CallFailed,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArgument,
    RequestRefused,
    ServerBusy,
    ServerFailed,
    StreamBroken,
)
from trtspec.client._metadata import Metadata, TensorSpec
from trtspec.client._metrics import Metrics, Sample
from trtspec.client._mock import AsyncMockTransport, MockTransport
from trtspec.client._options import Message, Options, Prompt
from trtspec.client._results import (
    Delta,
    FinishReason,
    Generation,
    ServerTimes,
    Speculation,
    Timings,
    Usage,
)
from trtspec.client._retry import Retry
from trtspec.client._stream import AsyncStream, Stream
from trtspec.client._transport import (
    AsyncResponses,
    AsyncTransport,
    Health,
    InferRequest,
    InferResponse,
    Responses,
    Transport,
)
from trtspec.errors import ClientError

__all__ = [
    "AsyncClient",
    "AsyncMockTransport",
    "AsyncResponses",
    "AsyncStream",
    "AsyncTransport",
    "CallFailed",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Delta",
    "FinishReason",
    "Generation",
    "Health",
    "InferRequest",
    "InferResponse",
    "InvalidArgument",
    "Message",
    "Metadata",
    "Metrics",
    "MockTransport",
    "Options",
    "Prompt",
    "RequestRefused",
    "Responses",
    "Retry",
    "Sample",
    "ServerBusy",
    "ServerFailed",
    "ServerTimes",
    "Speculation",
    "Stream",
    "StreamBroken",
    "TensorSpec",
    "Timings",
    "Tls",
    "Transport",
    "Usage",
]
