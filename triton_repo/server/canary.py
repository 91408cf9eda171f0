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
from trtspec.triton_repo.server.endpoints import Endpoints

Canary = Callable[[Endpoints], None]
"""Returns when the server has answered; raises TrtspecError when it has not."""

MODEL = "tensorrt_llm_bls"
PROMPT = "Hello"
# (num_draft_tokens, max_tokens): the target alone, then a round that has room for a draft,
# which the last token of an answer never has.
QUESTIONS = ((0, 1), (1, 3))
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
    """Ask the public model for a token without and for a few with the draft, over gRPC.

    Raises:
        ServerError: an error came back, or nothing.
    """
    import grpc
    from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

    # A proxy meant for the way out must not see a call to this machine.
    with grpc.insecure_channel(endpoints.grpc_url, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for num_draft_tokens, max_tokens in QUESTIONS:
            request = generation_request(PROMPT, max_tokens, num_draft_tokens)
            try:
                replies = list(stub.ModelStreamInfer(iter([request]), timeout=TIMEOUT_S))
            except grpc.RpcError as error:
                raise _unanswered(num_draft_tokens, f"{error.code().name}: {error.details()}") from error
            _check(replies, num_draft_tokens)


def generation_request(prompt: str, max_tokens: int, num_draft_tokens: int) -> Any:
    """Return the ModelInferRequest of NVIDIA's BLS tensors; the model's batch size is 1."""
    from tritonclient.grpc.service_pb2 import ModelInferRequest

    text = prompt.encode()
    request = ModelInferRequest(model_name=MODEL)
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


def _check(replies: list[Any], num_draft_tokens: int) -> None:
    if errors := [reply.error_message for reply in replies if reply.error_message]:
        raise _unanswered(num_draft_tokens, errors[0])
    outputs = {output.name for reply in replies for output in reply.infer_response.outputs}
    if "text_output" not in outputs:
        raise _unanswered(num_draft_tokens, f"{len(replies)} responses came, none with text_output")


def _unanswered(num_draft_tokens: int, reason: str) -> ServerError:
    return ServerError(f"{MODEL} did not answer with num_draft_tokens {num_draft_tokens}: {reason}")
