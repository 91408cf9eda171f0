"""A trace for the eye: in the terminal, and as a page of its own.

Colour is never the only signal: each kind of token has a sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.text import Text

from trtspec.page import render
from trtspec.triton_repo.trace.record import Added, Drafted, Round, Trace


@dataclass(frozen=True)
class Look:
    """How a kind of token is shown."""

    sign: str
    style: str  # of rich
    colour: str  # of the page
    meaning: str


LOOKS = {
    "accepted": Look("", "green", "#1a7f37", "draft token, accepted"),
    "rejected": Look("✗", "red strike", "#c1121f", "draft token, rejected"),
    "unread": Look("·", "dim", "#6b7280", "draft token after it, not looked at"),
    "correction": Look("→", "blue", "#0b5cad", "the target's own token in its place"),
    "bonus": Look("★", "bold blue", "#6f42c1", "the target's own token after all were accepted"),
    "target": Look("=", "default", "#111827", "token without a draft"),
}


def legend() -> Text:
    """Return what the signs mean, in one line."""
    text = Text()
    for name, look in LOOKS.items():
        text.append(f"{look.sign}{name}", look.style).append(f" {look.meaning}; ")
    return text[:-2]


def lines(trace: Trace, *, probabilities: bool = False) -> Iterator[Text]:
    """Yield a line for each round; with probabilities, one more for each of its tokens."""
    width = len(str(len(trace.rounds)))
    for number, found in enumerate(trace.rounds, 1):
        line = Text(f"{number:{width}}  {kept(found):>5}  ")
        for name, token in tokens(found):
            line.append(f"{LOOKS[name].sign}{shown(token.text)}", LOOKS[name].style).append(" ")
        yield line
        if probabilities:
            for name, token in tokens(found):
                yield Text(f"{'':{width}}         {shown(token.text):<16} {name:<10} {why(token)}", "dim")


def page(trace: Trace) -> str:
    """Return the trace as one HTML page that loads nothing; tokens tell p and q when pointed at."""
    names = {"tokens": tokens, "why": why, "shown": shown, "kept": kept}
    return render(
        "trtspec.triton_repo.trace", "page.html.j2", trace=trace, looks=LOOKS, summary=summary(trace), **names
    )


def summary(trace: Trace) -> str:
    """Return the figures of a trace, in a sentence."""
    rounds = sum(1 for found in trace.rounds if found.drafted)
    if not rounds:
        off = f": {trace.off_reason}" if trace.off_reason else ""
        return f"{len(trace.rounds)} tokens without a draft{off}."
    return (
        f"{rounds} rounds, {trace.accepted} of {trace.proposed} draft tokens accepted "
        f"(r = {trace.accepted / trace.proposed:.2f}), "
        f"E = {1 + trace.accepted / rounds:.2f} tokens a target call."
    )


def tokens(found: Round) -> Iterator[tuple[str, Drafted | Added]]:
    """Yield the tokens of a round, each with the name of its look."""
    for token in found.drafted:
        yield token.verdict, token
    if found.added is not None:
        yield found.added.kind, found.added


def kept(found: Round) -> str:
    """Return how many of the draft tokens were kept, as `3/5`."""
    accepted = sum(token.verdict == "accepted" for token in found.drafted)
    return f"{accepted}/{len(found.drafted)}" if found.drafted else ""


def why(token: Drafted | Added) -> str:
    """Return the probabilities behind a token."""
    if isinstance(token, Added):
        return f"p = {token.p:.3f}"
    if token.p is None:
        return f"q = {token.q:.3f}"
    ratio = "" if token.ratio is None else f", min(1, p/q) = {token.ratio:.3f}"
    return f"p = {token.p:.3f}, q = {token.q:.3f}{ratio}"


def shown(text: str) -> str:
    """Return a token's text with what cannot be seen made visible."""
    visible = text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
    return "".join(sign if sign.isprintable() else "�" for sign in visible) or "∅"
