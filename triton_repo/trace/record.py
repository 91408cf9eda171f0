"""Run a pair in this process through the loop that Triton runs, and write down every round.

p and q are the probabilities of the target and of the draft after temperature, top-k and top-p: those
that the acceptance rule compares. For greedy answers they are the models' own.
K draft tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trtspec.engines.load import load_engine
from trtspec.engines.pair import EnginePair
from trtspec.errors import EngineError, RepositoryError
from trtspec.triton_repo.speculation.draft_length import FixedDraftLength
from trtspec.triton_repo.speculation.loop import Call, Generation, Reply, common_length
from trtspec.triton_repo.speculation.output import Output
from trtspec.triton_repo.speculation.request import GenerationRequest, Limits, RequestError, Sampling
from trtspec.triton_repo.speculation.tokenizer import Tokenizer

Verdict = Literal["accepted", "rejected", "unread"]
Kind = Literal["correction", "bonus", "target"]


@dataclass(frozen=True)
class Drafted:
    """A draft token. `unread`: it stood after a rejected one, so nobody looked at it."""

    id: int
    text: str
    q: float
    # The target's probability and p / q, at most 1; None where the token is unread.
    p: float | None
    ratio: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Added:
    """The token of the target's own: in place of a rejected one, after all were accepted, or undrafted."""

    id: int
    text: str
    p: float
    kind: Kind


@dataclass(frozen=True)
class Round:
    """One call of the target. `added` is None where the answer had ended before it."""

    drafted: tuple[Drafted, ...]
    added: Added | None


@dataclass(frozen=True)
class Trace:
    """An answer and the rounds that made it."""

    prompt: str
    text: str
    finish_reason: str
    num_draft_tokens: int
    rounds: tuple[Round, ...]
    proposed: int
    accepted: int
    off_reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return the trace in JSON's types."""
        return asdict(self)


def trace(
    pair: EnginePair,
    prompt: str,
    *,
    max_tokens: int = 64,
    num_draft_tokens: int = 5,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    use_draft_logits: bool = False,
) -> Trace:
    """Generate an answer with a pair of the cpu runtime and return it with all of its rounds.

    Args:
        use_draft_logits: accept by the ratio of probabilities; else where the target, for the same
            random numbers, chooses the draft token too.

    Raises:
        RepositoryError: the pair is of another runtime.
        EngineError: the engines cannot answer what was asked; the message says what is wrong.
    """
    draft = pair.manifest.draft
    if pair.manifest.runtime != "cpu" or draft is None:
        raise RepositoryError(
            f"{pair.path}: made for --runtime {pair.manifest.runtime}; a trace runs pairs of --runtime cpu"
        )
    tokenizer = Tokenizer(pair.tokenizer / "tokenizer.json")
    target_settings = pair.manifest.target.settings
    request = GenerationRequest(
        prompt_ids=tokenizer.encode(prompt),
        max_tokens=max_tokens,
        num_draft_tokens=num_draft_tokens,
        eos_ids=pair.manifest.eos_token_ids,
        sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed),
        use_draft_logits=use_draft_logits,
    )
    limits = Limits(
        vocab_size=target_settings.vocab_size,
        max_seq_len=target_settings.max_seq_len,
        draft_max_seq_len=draft.settings.max_seq_len,
        max_draft_len=target_settings.max_draft_len,
        default_draft_len=num_draft_tokens,
    )
    try:
        request.check(limits)
    except RequestError as error:
        raise EngineError(f"{pair.path}: {error}") from error
    return _run(pair, prompt, request, limits, tokenizer, num_draft_tokens)


def _run(
    pair: EnginePair,
    prompt: str,
    request: GenerationRequest,
    limits: Limits,
    tokenizer: Tokenizer,
    num_draft_tokens: int,
) -> Trace:
    output = Output.of(request, tokenizer.detokenizer())
    generation = Generation(
        request,
        output,
        draft_max_seq_len=limits.draft_max_seq_len,
        draft_length=FixedDraftLength(num_draft_tokens),
        chunk_s=0.0,
    )
    engines = {
        "target": _Engine(pair.target, request.sampling, request.eos_ids),
        "draft": _Engine(pair.draft, request.sampling, request.eos_ids),
    }
    scribe = _Scribe(tokenizer, request.prompt_ids[-1])
    text = ""
    while (call := generation.next_call()) is not None:
        engine = engines[call.engine]
        reply = engine.ask(call)
        scribe.write(call, reply, engine.probabilities(reply))
        text += generation.take(call, reply).text
    return Trace(
        prompt=prompt,
        text=text,
        finish_reason=output.finish_reason,
        num_draft_tokens=num_draft_tokens,
        rounds=tuple(scribe.rounds),
        proposed=generation.speculation.proposed,
        accepted=generation.speculation.accepted,
        off_reason=generation.speculation.off_reason,
    )


class _Engine:
    """A cpu engine that answers the calls of the loop; every reply has its logits."""

    def __init__(self, folder: Path, sampling: Sampling, eos_ids: Sequence[int]) -> None:
        from trtspec.engines.cpu.sampling import Sampler, SamplingParams

        self._engine = load_engine(folder)
        self._ends = tuple((eos_id,) for eos_id in eos_ids)
        self._params = SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=sampling.seed or 0,
        )
        self._sampler = Sampler(self._params, ())

    def ask(self, call: Call) -> Reply:
        from trtspec.engines.cpu.request import Request

        asked = Request(
            input_ids=call.input_ids.tolist(),
            max_new_tokens=call.max_new_tokens,
            draft_ids=call.draft_ids,
            draft_logits=call.draft_logits_KV,
            stop_words=self._ends,
            sampling=self._params,
            return_generation_logits=True,
        )
        (answer,) = self._engine.generate(asked)
        return Reply(answer.ids, logits_TV=answer.logits)

    def probabilities(self, reply: Reply) -> NDArray[np.float64]:
        """Return what the tokens of a reply were drawn from, shape [T, V]."""
        import torch

        assert reply.logits_TV is not None
        scores = self._sampler.scores(torch.from_numpy(reply.logits_TV.copy()), (), 0, ())
        found: NDArray[np.float64] = scores.double().softmax(-1).numpy()
        return found


class _Scribe:
    """Writes the rounds down as the replies come in."""

    def __init__(self, tokenizer: Tokenizer, last_prompt_id: int) -> None:
        self.rounds: list[Round] = []
        self._tokenizer = tokenizer
        # What the last proposal was drawn from, shape [K, V].
        self._q_KV: NDArray[np.float64] = np.empty((0, 0))
        # The token before the next one.
        self._last = last_prompt_id

    def write(self, call: Call, reply: Reply, probabilities_TV: NDArray[np.float64]) -> None:
        """Write one reply down: of the target a round, or tokens of its own."""
        if call.engine == "draft":
            self._q_KV = probabilities_TV
            self._last = int(call.input_ids[-1])
            return
        if call.draft_ids:
            self.rounds.append(self._round(self._last, call.draft_ids, reply.ids, probabilities_TV))
            return
        for token_id, p_V in zip(reply.ids, probabilities_TV, strict=True):
            self.rounds.append(Round((), self._added(self._last, token_id, p_V, "target")))
            self._last = token_id

    def _round(
        self, last: int, draft_ids: Sequence[int], returned: Sequence[int], p_TV: NDArray[np.float64]
    ) -> Round:
        kept = common_length(draft_ids, returned)
        drafted = []
        for k, (before, token_id) in enumerate(zip([last, *draft_ids], draft_ids, strict=False)):
            # The target returns a row for every token it adds: none for draft tokens it did not read.
            p = float(p_TV[k, token_id]) if k < len(p_TV) else None
            verdict: Verdict = "accepted" if k < kept else "unread" if p is None or k > kept else "rejected"
            drafted.append(self._drafted(before, token_id, float(self._q_KV[k, token_id]), p, verdict))
        if kept == len(returned):
            return Round(tuple(drafted), None)
        kind: Kind = "bonus" if kept == len(draft_ids) else "correction"
        before = [last, *returned][kept]
        return Round(tuple(drafted), self._added(before, returned[kept], p_TV[kept], kind))

    def _drafted(self, before: int, token_id: int, q: float, p: float | None, verdict: Verdict) -> Drafted:
        ratio = None if p is None or not q else min(1.0, p / q)
        return Drafted(token_id, self._text(before, token_id), q, p, ratio, verdict)

    def _added(self, before: int, token_id: int, p_V: NDArray[np.float64], kind: Kind) -> Added:
        return Added(token_id, self._text(before, token_id), float(p_V[token_id]), kind)

    def _text(self, before: int, token_id: int) -> str:
        """Return how a token reads after another: alone, some tokenizers would drop its space."""
        anchor, both = self._tokenizer.decode([before]), self._tokenizer.decode([before, token_id])
        return both[len(anchor) :] if both.startswith(anchor) else self._tokenizer.decode([token_id])
