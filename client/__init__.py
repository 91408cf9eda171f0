"""What applications import: ask a running server, and read what comes back.

    from trtspec.client import Client

    with Client("localhost:8001") as client:
        print(client.generate("def main(", max_tokens=32).text)
        with client.stream("def main(", stop_words="\\n\\n") as stream:
            for delta in stream:
                print(delta.text, end="", flush=True)

Needs numpy and tritonclient, nothing else. `trtspec.client.verify` compares served answers with a
reference and is imported on its own.
"""

from trtspec.client._client import Client
from trtspec.client._errors import (
    CallFailed,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArgument,
    RequestRefused,
    ServerFailed,
    StreamBroken,
)
from trtspec.client._mock import MockTransport
from trtspec.client._options import Options, Prompt
from trtspec.client._results import Delta, FinishReason, Generation, Speculation, Usage
from trtspec.client._stream import Stream
from trtspec.client._transport import Health, InferRequest, InferResponse, Responses, Transport
from trtspec.errors import ClientError

__all__ = [
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
    "MockTransport",
    "Options",
    "Prompt",
    "RequestRefused",
    "Responses",
    "ServerFailed",
    "Speculation",
    "Stream",
    "StreamBroken",
    "Transport",
    "Usage",
]
