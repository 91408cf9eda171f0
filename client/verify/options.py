"""Request options: does each have an effect, and the right one?

An option that changes the choice of tokens is done to the reference's logits (`Shaping`), and the
answer is judged by those; it has an effect when it changes the reference's choice somewhere. Options
that end an answer, or that must change nothing, are compared with the answer without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trtspec.client._client import Client
from trtspec.client._errors import InvalidArgument, RequestRefused
from trtspec.client._options import Options
from trtspec.client._results import Generation
from trtspec.client.verify.distribution import Shaping
from trtspec.client.verify.findings import Finding
from trtspec.client.verify.greedy import Judge, Rule

PART = "options"
MAX_TOKENS = 24


@dataclass(frozen=True)
class _Asked:
    """Where options are tried: a prompt, how many tokens are drafted, and the plain greedy answer."""

    client: Client
    judge: Judge
    prompt: str
    num_draft_tokens: int
    plain: Generation

    def answer(self, options: Options, max_tokens: int = MAX_TOKENS) -> Generation:
        base = Options(max_tokens=max_tokens, num_draft_tokens=self.num_draft_tokens)
        return self.client.generate(self.prompt, **Options(**base, **options))


# What is wrong, "" when nothing is; None when this prompt shows no effect of the option.
_Outcome = str | None
_Check = Callable[[_Asked], _Outcome]


def check_options(
    client: Client, judge: Judge, prompts: Sequence[str], num_draft_tokens: Sequence[int]
) -> Iterator[Finding]:
    """Yield a finding for each option and draft length; an option that is refused is skipped.

    Raises:
        CallFailed: when an answer did not come.
    """
    for drafts in num_draft_tokens:
        asked = []
        for prompt in prompts:
            plain = client.generate(prompt, max_tokens=MAX_TOKENS, num_draft_tokens=drafts)
            if plain.text and not plain.token_ids:
                why = "the server sends no token ids (output_ids); greedy text and stop words are compared"
                yield Finding(PART, f"all, {drafts} draft tokens", "skipped", why)
                return
            asked.append(_Asked(client, judge, prompt, drafts, plain))
        for name, check in CHECKS.items():
            yield _checked(f"{name}, {drafts} draft tokens", check, asked)


def _checked(name: str, check: _Check, asked: Sequence[_Asked]) -> Finding:
    outcomes = []
    for one in asked:
        try:
            outcomes.append((one.prompt, check(one)))
        except (RequestRefused, InvalidArgument) as error:
            return Finding(PART, name, "skipped", f"refused: {error}")
    wrong = [f"{prompt[:40]!r}: {found}" for prompt, found in outcomes if found]
    seen = sum(found is not None for _, found in outcomes)
    if wrong:
        return Finding(PART, name, "defect", "; ".join(wrong))
    if not seen:
        return Finding(PART, name, "skipped", "with none of the prompts has it an effect")
    return Finding(PART, name, "ok", f"right with {len(outcomes)} prompts, an effect with {seen}")


def _shaped(asked: _Asked, options: Options, shaping: Shaping, end_ids: frozenset[int]) -> _Outcome:
    """Judge an answer by the logits that the option leaves."""
    answer = asked.answer(options)
    prompt_ids = asked.judge.prompt_ids(asked.prompt)
    rule = Rule(MAX_TOKENS, end_ids, shaping.apply)
    found = asked.judge.differences(prompt_ids, answer.token_ids, answer.finish_reason == "stop", rule)
    defect = next((difference for difference in found if difference.verdict == "defect"), None)
    if defect:
        said = [token.text if token else "the end" for token in (defect.served, defect.expected)]
        return f"position {defect.position}: served {said[0]!r}, expected {said[1]!r}"
    rows = asked.judge.reference.logits(prompt_ids, answer.token_ids)[: len(answer.token_ids)]
    changed = any(
        int(shaping.apply(row_V, [*prompt_ids, *answer.token_ids[:n]], n).argmax()) != int(row_V.argmax())
        for n, row_V in enumerate(rows)
    )
    return "" if changed else None


def _penalty(name: str, value: float) -> _Check:
    def check(asked: _Asked) -> _Outcome:
        options = Options(**{name: value})  # type: ignore[misc]
        return _shaped(asked, options, Shaping(**{name: value}), asked.judge.reference.end_ids)  # type: ignore[arg-type]

    return check


def _word(asked: _Asked) -> tuple[str, list[list[int]]] | None:
    """Return a word of the plain answer, and its ids at the start of a text and after a space."""
    words = [word for word in asked.plain.text.split() if word.isalpha()]
    if not words:
        return None
    encode = asked.judge.reference.encode
    return words[0], [encode(words[0], special=False), encode(f" {words[0]}", special=False)]


def _bad_words(asked: _Asked) -> _Outcome:
    found = _word(asked)
    if not found:
        return None
    word, spellings = found
    return _shaped(
        asked, Options(bad_words=[word]), Shaping(bad_words=spellings), asked.judge.reference.end_ids
    )


def _bias(asked: _Asked) -> _Outcome:
    found = _word(asked)
    if not found:
        return None
    word, spellings = found
    bias = dict.fromkeys({token for ids in spellings for token in ids}, -8.0)
    options = Options(embedding_bias={word: -8.0})
    return _shaped(asked, options, Shaping(bias=bias), asked.judge.reference.end_ids)


def _end_id(asked: _Asked) -> _Outcome:
    """The fourth token of the plain answer, as the end: the answer ends with its first occurrence."""
    end = _early(asked)
    if end is None:
        return None
    answer = asked.answer(Options(end_id=end))
    if _tied(asked, answer):
        return None
    until = asked.plain.token_ids[: asked.plain.token_ids.index(end) + 1]
    if answer.token_ids not in (until, until[:-1]):
        return f"ended after {len(answer.token_ids)} tokens, expected {len(until)}"
    return "" if answer.finish_reason == "stop" else f"finish reason {answer.finish_reason!r}"


def _min_tokens(asked: _Asked) -> _Outcome:
    """The same end, and more tokens than it takes to meet it: it is left out of the choice until then."""
    end = _early(asked)
    if end is None:
        return None
    least, ends = asked.plain.token_ids.index(end) + 4, frozenset({end})
    shaping = Shaping(min_tokens=least, end_ids=ends)
    return _shaped(asked, Options(end_id=end, min_tokens=least), shaping, ends)


def _tied(asked: _Asked, answer: Generation) -> bool:
    """Whether an answer left the plain one at a tie, so that the two say nothing about each other."""
    shared = min(len(answer.token_ids), len(asked.plain.token_ids))
    if answer.token_ids[:shared] == asked.plain.token_ids[:shared]:
        return False
    rule = Rule(shared, asked.judge.reference.end_ids)
    prompt_ids = asked.judge.prompt_ids(asked.prompt)
    found = asked.judge.differences(prompt_ids, answer.token_ids[:shared], False, rule)
    return bool(found) and all(difference.verdict == "tie" for difference in found)


def _early(asked: _Asked) -> int | None:
    ids = asked.plain.token_ids
    return ids[3] if len(ids) > 3 and ids[3] not in asked.judge.reference.end_ids else None


def _stop_words(asked: _Asked) -> _Outcome:
    """A piece from the middle of the plain text: the answer is the text before its first occurrence."""
    text = asked.plain.text
    middle = len(text) // 2
    stop = text[middle : middle + 3]
    if len(stop) < 3 or "\N{REPLACEMENT CHARACTER}" in text:
        return None
    answer = asked.answer(Options(stop_words=[stop]))
    if _tied(asked, answer):
        return None
    expected = text[: text.index(stop)]
    if answer.text != expected:
        return f"with {stop!r} served {answer.text!r}, expected {expected!r}"
    return "" if answer.finish_reason == "stop" else f"finish reason {answer.finish_reason!r}"


def _max_tokens(asked: _Asked) -> _Outcome:
    if len(asked.plain.token_ids) < 5:
        return None
    answer = asked.answer(Options(), max_tokens=5)
    if _tied(asked, answer):
        return None
    served = answer.token_ids
    return "" if served == asked.plain.token_ids[:5] else f"served {len(served)} tokens or others, expected 5"


def _greedy_spelling(**options: float) -> _Check:
    """Options that mean greedy have to give the greedy answer."""

    def check(asked: _Asked) -> _Outcome:
        answer = asked.answer(Options(seed=1, **options))  # type: ignore[typeddict-item]
        rule = Rule(MAX_TOKENS, asked.judge.reference.end_ids)
        case = asked.judge.case(asked.prompt, asked.num_draft_tokens, answer, rule)
        return "" if case.ok else "not the greedy answer"

    return check


def _seed(asked: _Asked) -> _Outcome:
    """The same seed gives the same answer; of several others, one gives another."""
    answers = [asked.answer(Options(temperature=1.5, seed=seed)).token_ids for seed in (7, 7, 8, 9, 10)]
    if answers[0] != answers[1]:
        return "the same seed gave two answers"
    return "" if len(set(answers)) > 1 else "all seeds give the same answer"


def _log_probs(asked: _Asked) -> _Outcome:
    with_them = asked.answer(Options(return_log_probs=True))
    if _tied(asked, with_them):
        return None
    if with_them.token_ids != asked.plain.token_ids:
        return "asking for log-probs changes the answer"
    if len(with_them.log_probs) != len(with_them.token_ids):
        return f"{len(with_them.log_probs)} log-probs for {len(with_them.token_ids)} tokens"
    return "" if not asked.plain.log_probs else "log-probs come without being asked for"


CHECKS: dict[str, _Check] = {
    "max_tokens": _max_tokens,
    "stop_words": _stop_words,
    "end_id": _end_id,
    "min_tokens": _min_tokens,
    "bad_words": _bad_words,
    "embedding_bias": _bias,
    "repetition_penalty": _penalty("repetition_penalty", 1.8),
    "presence_penalty": _penalty("presence_penalty", 4.0),
    "frequency_penalty": _penalty("frequency_penalty", 3.0),
    "temperature 0": _greedy_spelling(temperature=0.0),
    "top_k 1": _greedy_spelling(top_k=1),
    "seed": _seed,
    "return_log_probs": _log_probs,
}
