"""What both clients do between a call and its transport, without waiting for anything."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trtspec.client._answer import Answer, Deadline, Terms
from trtspec.client._errors import InvalidArgument, RequestRefused
from trtspec.client._metadata import MODELS, Metadata, fit
from trtspec.client._options import Message, Options, Prompt, tensors
from trtspec.client._transport import Health, InferRequest

HEALTH_TIMEOUT_S = 5.0
# 23 days; more is no limit: sockets take 2**31 ms at most, and gRPC takes 1e300 s for a time in the past.
MOST_TIMEOUT_S = 2_000_000.0
CANARY = "Hello"
# What a canary asks for: one token of the target alone.
CANARY_OPTIONS: Options = {"max_tokens": 1}


@dataclass
class Calls:
    """What holds for all calls of a client."""

    model: str | None
    timeout_s: float | None
    terms: Terms
    closed: bool = False

    def __post_init__(self) -> None:
        check_timeout(self.timeout_s)

    @property
    def models(self) -> tuple[str, ...]:
        """The models to look for, the first that is there is asked."""
        return MODELS if self.model is None else (self.model,)

    def answer(
        self,
        prompt: Prompt,
        options: Options,
        metadata: Metadata,
        deadline: Deadline,
        *,
        stream: bool,
    ) -> Answer:
        """Return the answer to be, with the request for it."""
        inputs = fit(tensors(prompt, options, stream=stream), metadata)
        request = InferRequest(metadata.model, uuid.uuid4().hex, inputs, deadline.allowed_s)
        return Answer(request, metadata, self.terms, deadline)

    def begin(self, timeout_s: float | None) -> Deadline:
        """Return the time for a call, which begins now; InvalidArgument when there can be no call."""
        if self.closed:
            raise InvalidArgument("client: found it closed, expected it open; make another")
        check_timeout(timeout_s)
        allowed_s = self.timeout_s if timeout_s is None else timeout_s
        # Plain: locks do not take numpy's numbers.
        limit_s = None if allowed_s is None or allowed_s > MOST_TIMEOUT_S else float(allowed_s)
        return Deadline(self.terms.clock(), limit_s, self.terms.clock)

    def begin_question(self, timeout_s: float) -> Deadline:
        """Return the time for a method that is never without limit, which begins now."""
        check_timeout(timeout_s)
        return self.begin(min(timeout_s, MOST_TIMEOUT_S))


def is_unknown(error: RequestRefused) -> bool:
    """Whether the server has no model of the name that it was asked for."""
    return error.status == "NOT_FOUND" or "unknown model" in error.server_message


def no_model(names: Sequence[str], error: RequestRefused) -> RequestRefused:
    return RequestRefused(
        f"found no model to ask, expected one of {', '.join(names)}; pass model= ({error})",
        status=error.status,
        server_message=error.server_message,
    )


def check_timeout(timeout_s: float | None) -> None:
    is_number = isinstance(timeout_s, int | float | np.integer | np.floating)
    if timeout_s is not None and not (is_number and timeout_s > 0):
        raise InvalidArgument(
            f"timeout_s: found {timeout_s!r}, expected a positive number of seconds; math.inf is no limit"
        )


def checked_messages(messages: Sequence[Message]) -> Sequence[Message]:
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise InvalidArgument(f"messages: found {messages!r:.60}, expected dictionaries of role and content")
    return messages


def with_canary(health: Health, error: Exception | None) -> Health:
    """Return the health with what became of the canary."""
    detail = "" if error is None else str(error)
    return Health(health.live, health.ready, health.model_ready, error is None, detail)
