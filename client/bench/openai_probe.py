"""What a server at http://host:port is: one with OpenAI's API, or a Triton."""

from __future__ import annotations

import json
from contextlib import closing

from trtspec.client._connections import Pool
from trtspec.client._endpoint import Endpoint, endpoint
from trtspec.client._errors import CallFailed, ConnectionFailed, DeadlineExceeded, StreamBroken
from trtspec.client._failures import Call
from trtspec.client._questions import get

TIMEOUT_S = 5.0
BASE = "/v1"


def find_openai(url: str) -> str | None:
    """Return the address of OpenAI's API at a server; None where that is a Triton.

    No key is sent: a server that wants one for the list of its models has such a list.

    Raises:
        InvalidArgument: for what is no address.
        CallFailed: where nobody answers, or who does is neither.
    """
    server = endpoint(url)
    try:
        if _says(server, "/v2", "extensions"):
            return None
    except CallFailed:
        pass  # a proxy may fail for what is not behind it
    try:
        if _says(server, f"{BASE}/models", "data") is not False:
            return server.url + BASE
    except DeadlineExceeded:
        raise DeadlineExceeded(
            f"{server.url}: said nothing for {TIMEOUT_S:g} s when asked what it is; is it overloaded?"
        ) from None
    except ConnectionFailed as error:
        words = error.server_message
        raise ConnectionFailed(
            f"{server.url}: no server took the request: {words}; is it running there?",
            status=error.status,
            server_message=words,
        ) from None
    raise StreamBroken(
        f"{server.url}: found neither a Triton (/v2) nor OpenAI's API ({BASE}/models); is the port right? "
        f"Where that API has another path, or no list of models, give the path, as {server.url}{BASE}"
    )


def _says(server: Endpoint, path: str, field: str) -> bool | None:
    """Return whether there is a JSON object with this field; None where a key is wanted for it.

    Raises:
        CallFailed: where nothing is said.
    """
    try:
        with closing(Pool(server)) as pool:
            said = json.loads(get(pool, path, Call(server.address, timeout_s=TIMEOUT_S)))
    except (ConnectionFailed, DeadlineExceeded):
        raise
    except CallFailed as error:
        return None if error.status in ("UNAUTHENTICATED", "PERMISSION_DENIED") else False
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and field in said
