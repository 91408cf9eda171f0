"""The client."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from trtspec.client._answer import Deadline, Terms
from trtspec.client._calls import (
    CANARY,
    CANARY_OPTIONS,
    HEALTH_TIMEOUT_S,
    Calls,
    checked_messages,
    is_unknown,
    no_model,
    with_canary,
)
from trtspec.client._connect import connect
from trtspec.client._endpoint import Endpoint, Tls, endpoint
from trtspec.client._errors import CallFailed, RequestRefused
from trtspec.client._failures import Call
from trtspec.client._many import OnAnswer, ask_many, ignore
from trtspec.client._metadata import Metadata
from trtspec.client._metrics import Metrics, parse_metrics
from trtspec.client._options import Message, Options, Prompt
from trtspec.client._results import Generation
from trtspec.client._retry import Retry
from trtspec.client._stream import Stream
from trtspec.client._transport import Health, Transport

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client:
    """Asks one server; many threads may share it.

    A context manager: leaving it closes the connection and cancels what is still under way.

    Args:
        url: host:port or grpc://host:port of Triton's gRPC port, or http://host:port; grpcs:// and
            https:// are encrypted.
        model: what to ask; by default the first the server has of tensorrt_llm_bls (trtspec's,
            NVIDIA's), ensemble and tensorrt_llm (NVIDIA's llmapi).
        timeout_s: for a whole answer, unless a call says otherwise; None: no limit, which in a call is
            math.inf. The server stops working on an answer whose time is up.
        api_key: sent as `authorization: Bearer …`.
        headers: sent with every request.
        tls: own authorities, and a certificate for servers that ask for one.
        metrics_url: where the metrics are, when not on Triton's port beside `url`'s.
        max_message_bytes: of one request or response; 64 MB, over HTTP 4 MB for a request, which is
            what Triton bears up to release 25.08.
        transport: what carries the requests, in place of a connection to `url`.
        sleep, clock: what waits until it asks again and what time it is, for tests; by default `close`
            ends the wait.
    """

    def __init__(
        self,
        url: str = "localhost:8001",
        *,
        model: str | None = None,
        timeout_s: float | None = 300.0,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tls: Tls | None = None,
        metrics_url: str | None = None,
        max_message_bytes: int | None = None,
        retry: Retry = Retry(),  # noqa: B008, it is frozen
        transport: Transport | None = None,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint: Endpoint = endpoint(
            url,
            api_key=api_key,
            headers=headers,
            tls=tls,
            metrics_url=metrics_url,
            max_message_bytes=max_message_bytes,
        )
        self._calls = Calls(model, timeout_s, Terms(retry, clock, random.random))
        self._closing = threading.Event()
        self._sleep: Callable[[float], object] = sleep or self._closing.wait
        self._transport: Transport = transport or connect(self._endpoint)
        self._lock = threading.Lock()
        self._metadata: Metadata | None = None

    def __repr__(self) -> str:
        return f"Client({self._endpoint.url!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Generation:
        """Return the whole answer to a prompt, given as text, as token ids or as messages.

        Raises:
            InvalidArgument: for what cannot be sent, or what this server's model has no input for.
            CallFailed: when no whole answer came; its subclasses say why.
        """
        with self._ask(prompt, options, timeout_s, stream=False) as stream:
            return stream.result

    def stream(self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Stream:
        """Return the answer as a stream of deltas; errors as for `generate`, also while iterating.

        A model that cannot stream gives one delta.
        """
        return self._ask(prompt, options, timeout_s, stream=True)

    def chat(
        self, messages: Sequence[Message], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Generation:
        """Return the whole answer to a conversation; the server applies the model's chat template.

        `stream` takes messages as well.
        """
        return self.generate(checked_messages(messages), timeout_s=timeout_s, **options)

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        concurrency: int = 8,
        on_answer: OnAnswer = ignore,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> list[Generation]:
        """Return the answers in the prompts' order, `concurrency` of them under way at a time.

        Args:
            on_answer: called here with the number of each prompt and its answer, as they come.

        Raises:
            CallFailed: the first that failed; what else is under way is cancelled.
        """
        ask = [lambda p=p: self._ask(p, options, timeout_s, stream=False) for p in prompts]
        if ask:
            self.metadata(timeout_s=timeout_s)  # not in a thread of theirs, which an interrupt does not reach
        return ask_many(ask, concurrency, on_answer)

    def tokenize(self, prompt: Prompt, *, timeout_s: float | None = None) -> tuple[int, ...]:
        """Return the token ids of a text or a conversation, as the server reads them."""
        return self.generate(prompt, timeout_s=timeout_s, max_tokens=0, return_prompt_ids=True).prompt_ids

    def health(self, *, canary: bool = True, timeout_s: float = HEALTH_TIMEOUT_S) -> Health:
        """Return how the server is; all False when none answers.

        Args:
            canary: also ask for one token, which must come back.
            timeout_s: for all of it.
        """
        deadline, name = self._calls.begin_question(timeout_s), self._calls.models[0]
        try:
            name = self._find_model(deadline).model
        except CallFailed as error:
            health = self._transport.health(name, deadline.left_s())
            return with_canary(health, error) if canary else health
        health = self._transport.health(name, deadline.left_s())
        if not (canary and health.live):
            return health
        try:
            self.generate(CANARY, timeout_s=deadline.left_s(), **CANARY_OPTIONS)
        except CallFailed as error:
            return with_canary(health, error)
        return with_canary(health, None)

    def is_ready(self) -> bool:
        """Whether server and model say that they are ready; `health` asks for proof."""
        health = self.health(canary=False)
        return health.ready and health.model_ready

    def metadata(self, *, timeout_s: float | None = None) -> Metadata:
        """Return what the server says of itself and of the model; asked once."""
        return self._described(self._calls.begin(timeout_s))

    def metrics(self, *, timeout_s: float = HEALTH_TIMEOUT_S) -> Metrics:
        """Return the server's counters, Triton's own and those of its models."""
        return parse_metrics(self._transport.metrics(self._calls.begin_question(timeout_s).left_s()))

    def close(self) -> None:
        """Close the connection; answers still under way are cancelled."""
        self._calls.closed = True
        self._closing.set()
        self._transport.close()

    def _ask(self, prompt: Prompt, options: Options, timeout_s: float | None, *, stream: bool) -> Stream:
        deadline = self._calls.begin(timeout_s)
        metadata = self._described(deadline)
        streams = stream or self._endpoint.always_streams
        answer = self._calls.answer(prompt, options, metadata, deadline, stream=streams)
        return Stream(answer, self._transport, self._sleep)

    def _described(self, deadline: Deadline) -> Metadata:
        if not self._lock.acquire(timeout=-1 if deadline.allowed_s is None else deadline.allowed_s):
            raise Call(self._endpoint.address, timeout_s=deadline.allowed_s).failure("DEADLINE_EXCEEDED", "")
        try:
            attempt = 1
            while self._metadata is None:
                try:
                    self._metadata = self._find_model(deadline)
                except CallFailed as error:
                    wait_s = self._calls.terms.wait_s(error, attempt, deadline)
                    if wait_s is None:
                        raise
                    self._sleep(wait_s)
                    attempt += 1
            return self._metadata
        finally:
            self._lock.release()

    def _find_model(self, deadline: Deadline) -> Metadata:
        for name in self._calls.models:
            try:
                return self._transport.metadata(name, deadline.left_s())
            except RequestRefused as error:
                refused = error
                if not is_unknown(error):
                    raise
        raise no_model(self._calls.models, refused)
