"""Logits: by how much is the served distribution another than the reference's?

For each position the Kullback-Leibler divergence D(reference ‖ served) of the next token's
distribution, temperature 1, over the reference's 20 likeliest tokens and one cell for all others. Cells
put together cannot diverge more than what is in them, so that what noise explains of the whole
vocabulary is also a limit here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trtspec.client._client import Client
from trtspec.client._errors import InvalidArgument, RequestRefused, ServerFailed
from trtspec.client._options import Options
from trtspec.client._results import Generation
from trtspec.client.verify.asking import Question, ask
from trtspec.client.verify.distribution import top_kl
from trtspec.client.verify.findings import Finding
from trtspec.client.verify.greedy import Judge
from trtspec.client.verify.log_probs import PART

OUTPUT = "generation_logits"
TOP = 20
# A row of a vocabulary of 128k is half a megabyte.
TOKENS = 32


def compare_logits(
    client: Client,
    judge: Judge,
    prompts: Sequence[str],
    num_draft_tokens: Sequence[int],
    *,
    max_tokens: int,
    concurrency: int,
) -> Iterator[Finding]:
    """Yield, for each prompt and draft length, mean and largest divergence over the answer.

    The mean may be the mean of `Noise.kl`, the largest `Noise.largest_kl` of its position. Engines that
    were not built to hand out logits fail when they are asked for them: that is skipped, not a defect.

    Raises:
        CallFailed: when an answer did not come for another reason.
    """
    if OUTPUT not in client.metadata().outputs:
        yield Finding(PART, "logits", "skipped", f"the server's model has no output {OUTPUT}")
        return
    wanted = [(prompt, drafts) for drafts in num_draft_tokens for prompt in prompts]
    questions = [
        Question(
            prompt,
            Options(
                max_tokens=min(max_tokens, TOKENS), num_draft_tokens=drafts, return_generation_logits=True
            ),
        )
        for prompt, drafts in wanted
    ]
    try:
        for (prompt, drafts), answer in zip(wanted, ask(client, questions, concurrency), strict=True):
            yield _compare(judge, prompt, f"logits, {drafts} draft tokens: {prompt[:40]!r}", answer)
    except (RequestRefused, ServerFailed, InvalidArgument) as error:
        yield Finding(PART, "logits", "skipped", f"the server does not send its logits: {error}")


def _compare(judge: Judge, prompt: str, name: str, answer: Generation) -> Finding:
    served_TV, ids, width = answer.generation_logits, answer.token_ids, judge.reference.vocab_size
    if served_TV is None or not ids:
        return Finding(PART, name, "skipped", "the server sent no logits, or no token ids (output_ids)")
    if len(served_TV) != len(ids) or served_TV.shape[1] < width:
        found = f"{list(served_TV.shape)} logits for {len(ids)} tokens and a vocabulary of {width}"
        return Finding(PART, name, "defect", found)
    if not all(0 <= token < width for token in ids):
        return Finding(PART, name, "defect", "a token that is not in the vocabulary")
    rows = judge.reference.logits(judge.prompt_ids(prompt), ids)[:-1]
    # Engines pad the vocabulary to a multiple of their ranks.
    kl_T = np.array(
        [top_kl(row_V, served_V[:width], TOP) for row_V, served_V in zip(rows, served_TV, strict=True)]
    )
    limits_T = np.array([judge.noise.largest_kl(row_V) for row_V in rows])
    mean, allowed = float(kl_T.mean()), float(np.mean([judge.noise.kl(row_V) for row_V in rows]))
    shares_T = kl_T / np.maximum(limits_T, np.finfo(float).tiny)
    worst = int(np.argmax(np.where(np.isfinite(shares_T), shares_T, np.inf)))
    fits = mean <= allowed and bool((kl_T <= limits_T).all())
    detail = (
        f"{len(ids)} tokens, KL divergence of the top {TOP} and the rest: {mean:.2g} nats on average of "
        f"{allowed:.2g} allowed, at most {kl_T.max():.2g}; nearest its limit is position {worst}: "
        f"{kl_T[worst]:.2g} of {limits_T[worst]:.2g}"
    )
    numbers = {
        "mean_kl": mean,
        "allowed_mean_kl": allowed,
        "largest_kl": float(kl_T.max()),
        "kl_nearest_its_limit": float(kl_T[worst]),
        "its_limit": float(limits_T[worst]),
    }
    return Finding(PART, name, "ok" if fits else "defect", detail, numbers)
