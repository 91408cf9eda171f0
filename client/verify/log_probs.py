"""Log-probs: is each served token's the reference's, and are the served logits its logits?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trtspec.client._client import Client
from trtspec.client._options import Options
from trtspec.client._results import Generation
from trtspec.client.verify.asking import Question, ask
from trtspec.client.verify.distribution import log_probs
from trtspec.client.verify.findings import Finding
from trtspec.client.verify.greedy import Judge

PART = "log-probs"


def compare_log_probs(
    client: Client,
    judge: Judge,
    prompts: Sequence[str],
    num_draft_tokens: Sequence[int],
    *,
    max_tokens: int,
    concurrency: int,
) -> Iterator[Finding]:
    """Yield, for each prompt and draft length, how far the log-probs of the answer are off.

    They are log-softmax of the target's raw logits at the served tokens; the tolerance is the bound of
    the served dtype's noise at each position.

    Raises:
        CallFailed: when an answer did not come.
    """
    wanted = [(prompt, drafts) for drafts in num_draft_tokens for prompt in prompts]
    questions = [
        Question(prompt, Options(max_tokens=max_tokens, num_draft_tokens=drafts, return_log_probs=True))
        for prompt, drafts in wanted
    ]
    for (prompt, drafts), answer in zip(wanted, ask(client, questions, concurrency), strict=True):
        yield _compare(judge, prompt, f"{drafts} draft tokens: {prompt[:40]!r}", answer)


def _compare(judge: Judge, prompt: str, name: str, answer: Generation) -> Finding:
    if not answer.token_ids:
        why = "the server sends no token ids (output_ids), so a log-prob cannot be put to its token"
        return Finding(PART, name, "skipped" if answer.text else "ok", why if answer.text else "no tokens")
    if len(answer.log_probs) != len(answer.token_ids):
        counts = f"{len(answer.log_probs)} log-probs for {len(answer.token_ids)} tokens"
        return Finding(PART, name, "defect", counts)
    if not all(0 <= token < judge.reference.vocab_size for token in answer.token_ids):
        return Finding(PART, name, "defect", "a token that is not in the vocabulary")
    rows = judge.reference.logits(judge.prompt_ids(prompt), answer.token_ids)[:-1]
    right = np.array([log_probs(row_V)[token] for row_V, token in zip(rows, answer.token_ids, strict=True)])
    off = np.abs(np.array(answer.log_probs) - right)
    bounds = np.array([judge.noise.bound(row_V) for row_V in rows])
    worst = int(np.argmax(np.where(np.isfinite(off), off - bounds, np.inf)))
    fits = bool(np.isfinite(off).all() and (off <= bounds).all())
    detail = (
        f"{len(off)} tokens; worst at position {worst}: served {answer.log_probs[worst]:.5f}, reference "
        f"{right[worst]:.5f}, off by {off[worst]:.2g} of {bounds[worst]:.2g} allowed"
    )
    numbers = {"largest_error": float(off.max()), "allowed": float(bounds[worst])}
    return Finding(PART, name, "ok" if fits else "defect", detail, numbers)
