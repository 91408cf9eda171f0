"""The fingerprint: do the engines still behave as they did where the pair was built?

Its manifest has what target and draft continued a few prompts with, greedily, log-probs and, at each
position, how far another correct computation may be off. The engines are asked the same through the
server, each by itself. No reference takes part: other than `greedy` and `log-probs`, this sees what a
host, a driver or a version has changed, and it sees the draft, which no answer shows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trtspec.client._calls import is_unknown
from trtspec.client._client import Client
from trtspec.client._errors import RequestRefused
from trtspec.client._transport import InferRequest, Responses
from trtspec.client.verify.findings import Finding

PART = "fingerprint"
# The models of a repository that hold the engines themselves, in TensorRT-LLM's tensors.
MODELS = MappingProxyType({"target": "tensorrt_llm", "draft": "tensorrt_llm_draft"})
TIMEOUT_S = 120.0


class Probe(Protocol):
    """What an engine continued a prompt with; see `trtspec.engines.manifest.ProbeManifest`."""

    @property
    def prompt_ids(self) -> Sequence[int]: ...

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def log_probs(self) -> Sequence[float]: ...

    @property
    def margins(self) -> Sequence[float]: ...

    @property
    def tolerances(self) -> Sequence[float]: ...


class Fingerprint(Protocol):
    """The probes of both engines; None where there is no draft engine."""

    @property
    def target(self) -> Sequence[Probe]: ...

    @property
    def draft(self) -> Sequence[Probe] | None: ...


def compare_fingerprint(
    client: Client, fingerprint: Fingerprint, models: Mapping[str, str] = MODELS
) -> Iterator[Finding]:
    """Yield, for each probe of each engine, whether it is continued as it was at the build.

    Args:
        models: the model of each engine, by its role.

    Raises:
        CallFailed: when an answer did not come.
    """
    asked = [
        (role, number, probe)
        for role, probes in (("target", fingerprint.target), ("draft", fingerprint.draft or ()))
        for number, probe in enumerate(probes, 1)
    ]
    with ExitStack() as open_streams:
        streams = [_ask(client, models[role], probe) for role, _, probe in asked]
        for stream in streams:
            open_streams.callback(stream.close)
        for (role, number, probe), stream in zip(asked, streams, strict=True):
            yield _finding(f"{role}, probe {number}", probe, stream)


def judge_probe(name: str, probe: Probe, ids: Sequence[int], log_probs: Sequence[float]) -> Finding:
    """Return whether an engine that continued a probe so behaves as it did at the build.

    After a first other token there is nothing to compare: it answers another prompt from there on. That
    token is a tie where the margin at the build lies within the tolerance, and its log-prob near that of
    the token in whose place it came.
    """
    if len(ids) != len(probe.ids) or len(log_probs) != len(probe.ids):
        counts = f"{len(ids)} tokens and {len(log_probs)} log-probs came, expected {len(probe.ids)} of both"
        return Finding(PART, name, "defect", counts)
    parted = next((n for n, pair in enumerate(zip(ids, probe.ids, strict=True)) if len({*pair}) > 1), None)
    seen = len(ids) if parted is None else parted + 1
    off = np.abs(np.array(log_probs[:seen]) - np.array(probe.log_probs[:seen]))
    allowed = np.array(probe.tolerances[:seen])
    excess = np.where(np.isfinite(off), off - allowed, np.inf)
    worst = int(np.argmax(excess))
    numbers = {"largest_error": float(off.max()), "allowed": float(allowed[worst])}
    error = f"log-prob {log_probs[worst]:.5f}, at the build {probe.log_probs[worst]:.5f}"
    error += f", off by {off[worst]:.2g} of {allowed[worst]:.2g} allowed"
    if parted is not None and probe.margins[parted] > probe.tolerances[parted]:
        detail = (
            f"position {parted}: token {ids[parted]}, at the build {probe.ids[parted]}, which was "
            f"{probe.margins[parted]:.3g} better than any other where noise explains "
            f"{probe.tolerances[parted]:.3g}"
        )
        return Finding(PART, name, "defect", detail, numbers)
    if excess[worst] > 0:
        return Finding(PART, name, "defect", f"position {worst}: {error}", numbers)
    if parted is not None:
        tie = f"position {parted}: token {ids[parted]} ties with {probe.ids[parted]}"
        return Finding(PART, name, "tie", tie, numbers)
    return Finding(PART, name, "ok", f"{seen} tokens; worst at position {worst}: {error}", numbers)


def _finding(name: str, probe: Probe, stream: Responses) -> Finding:
    try:
        outputs = [response.outputs for response in stream]
    except RequestRefused as refused:
        if is_unknown(refused):
            return Finding(PART, name, "skipped", f"the server does not show its engines: {refused}")
        return Finding(PART, name, "defect", f"it was refused: {refused}")
    return judge_probe(name, probe, _flat(outputs, "output_ids"), _flat(outputs, "output_log_probs"))


def _ask(client: Client, model: str, probe: Probe) -> Responses:
    prompt_ids = np.array([probe.prompt_ids], np.int32)
    inputs: dict[str, NDArray[Any]] = {
        "input_ids": prompt_ids,
        "input_lengths": np.array([[prompt_ids.size]], np.int32),
        "request_output_len": np.array([[len(probe.ids)]], np.int32),
        "return_log_probs": np.array([[True]]),
        "exclude_input_in_output": np.array([[True]]),
    }
    request = InferRequest(model, uuid.uuid4().hex, inputs, timeout_s=TIMEOUT_S, left_s=TIMEOUT_S)
    return client._transport.stream(request)


def _flat(outputs: Sequence[Any], name: str) -> list[Any]:
    """Return an output over all responses."""
    return [value for arrays in outputs if name in arrays for value in arrays[name].reshape(-1).tolist()]
