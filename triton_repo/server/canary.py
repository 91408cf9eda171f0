"""The first questions to a new server: only an answer makes it ready.

Triton's own health says that models are loaded. It stays true when a model's process has died, and
it says nothing about whether a generation comes back.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from trtspec.errors import ServerError
from trtspec.triton_repo.contract import PUBLIC_MODEL
from trtspec.triton_repo.server.endpoints import Endpoints

Canary = Callable[[Endpoints], None]
"""Returns when the server has answered; raises TrtspecError when it has not."""

PROMPT = "Hello"
# The runtime whose arithmetic does not depend on how many tokens a call checks. Others round
# differently, so that where two tokens are nearly as good either may come.
EXACT_RUNTIME = "cpu"
# The runtime that drafts as many tokens for every request.
FIXED_RUNTIME = "pytorch"
TIMEOUT_S = 120.0
HEALTH_TIMEOUT_S = 2.0


def models_are_loaded(endpoints: Endpoints, server_id: str) -> bool:
    """Whether the server with this id listens there and says that its models are loaded.

    A server that finds its port taken ends; until then, whoever took the port would be taken for it.
    """
    try:
        if _get(endpoints, "/v2/health/ready") is None:
            return False
        return bool(json.loads(_get(endpoints, "/v2") or "{}").get("name") == server_id)
    except (OSError, http.client.HTTPException, ValueError):
        return False


def ask_in_background(canary: Canary, endpoints: Endpoints) -> Future[None]:
    """Ask in a thread, for a canary may hang; it does not hold up the exit of the process."""
    answer: Future[None] = Future()

    def ask() -> None:
        try:
            canary(endpoints)
        except BaseException as error:
            answer.set_exception(error)
        else:
            answer.set_result(None)

    threading.Thread(target=ask, daemon=True).start()
    return answer


def ask_for_tokens(endpoints: Endpoints) -> None:
    """Ask the public model for a few tokens, without a draft and with the longest, over gRPC.

    Both extremes are warm after that: they are the smallest and the largest calls there are.

    Raises:
        ServerError: an error came back, or nothing, or two answers that must be equal and are not.
    """
    import grpc
    from tritonclient.grpc.service_pb2 import ModelConfigRequest
    from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

    # A proxy meant for the way out must not see a call to this machine.
    with grpc.insecure_channel(endpoints.grpc_url, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        longest, texts = 0, {}
        try:
            question = ModelConfigRequest(name=PUBLIC_MODEL)
            parameters = stub.ModelConfig(question, timeout=TIMEOUT_S).config.parameters
            longest = int(parameters["max_draft_len"].string_value or 1)
            runtime = parameters["engine_runtime"].string_value
            for length in (longest,) if runtime == FIXED_RUNTIME else (0, longest):
                # Room for a whole round and what follows it.
                request = generation_request(PROMPT, longest + 2, length)
                replies = list(stub.ModelStreamInfer(iter([request]), timeout=TIMEOUT_S))
                texts[length] = _text(replies, length)
        except grpc.RpcError as error:
            length = longest if texts else 0
            raise _unanswered(length, f"{error.code().name}: {error.details()}") from error
    if runtime == EXACT_RUNTIME and texts[0] != texts[longest]:
        raise ServerError(
            f"{PUBLIC_MODEL} answered {texts[0]!r} with num_draft_tokens 0 and {texts[longest]!r} with "
            f"{longest}; the answers must be equal: build the pair and its repository again"
        )


def generation_request(prompt: str, max_tokens: int, num_draft_tokens: int) -> Any:
    """Return the ModelInferRequest of NVIDIA's BLS tensors; the model's batch size is 1."""
    from tritonclient.grpc.service_pb2 import ModelInferRequest

    text = prompt.encode()
    request = ModelInferRequest(model_name=PUBLIC_MODEL)
    for name, datatype, content in (
        ("text_input", "BYTES", struct.pack("<I", len(text)) + text),
        ("max_tokens", "INT32", struct.pack("<i", max_tokens)),
        ("num_draft_tokens", "INT32", struct.pack("<i", num_draft_tokens)),
    ):
        request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        request.raw_input_contents.append(content)
    return request


def _get(endpoints: Endpoints, path: str) -> bytes | None:
    """Return the body of a 200, None for any other status."""
    connection = http.client.HTTPConnection(
        endpoints.reachable_host, endpoints.http_port, timeout=HEALTH_TIMEOUT_S
    )
    with contextlib.closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.read() if response.status == 200 else None


def _text(replies: list[Any], num_draft_tokens: int) -> str:
    if errors := [reply.error_message for reply in replies if reply.error_message]:
        raise _unanswered(num_draft_tokens, errors[0])
    texts = [
        content[4:]  # after its length
        for reply in replies
        for output, content in zip(
            reply.infer_response.outputs, reply.infer_response.raw_output_contents, strict=True
        )
        if output.name == "text_output"
    ]
    if not texts:
        raise _unanswered(num_draft_tokens, f"{len(replies)} responses came, none with text_output")
    return b"".join(texts).decode(errors="replace")


def _unanswered(num_draft_tokens: int, reason: str) -> ServerError:
    return ServerError(f"{PUBLIC_MODEL} did not answer with num_draft_tokens {num_draft_tokens}: {reason}")
