"""What a server at http://host:port is: one with OpenAI's API, or a Triton."""

from __future__ import annotations

import json

from trtspec.client._endpoint import Endpoint, endpoint
from trtspec.client._errors import CallFailed
from trtspec.client._failures import Call
from trtspec.client._questions import get

TIMEOUT_S = 5.0
BASE = "/v1"


def find_openai(url: str) -> str | None:
    """Return the address of OpenAI's API at a server; None where that is a Triton, or nobody answers.

    No key is sent: a server that wants one for the list of its models has such a list.

    Raises:
        InvalidArgument: for what is no address.
    """
    server = endpoint(url)
    if _says(server, "/v2", "extensions") or _says(server, f"{BASE}/models", "data") is False:
        return None
    return server.url + BASE


def _says(server: Endpoint, path: str, field: str) -> bool | None:
    """Return whether there is a JSON object with this field; None where a key is wanted for it."""
    try:
        said = json.loads(get(server, path, Call(server.address, timeout_s=TIMEOUT_S)))
    except CallFailed as error:
        return None if error.status in ("UNAUTHENTICATED", "PERMISSION_DENIED") else False
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and field in said
