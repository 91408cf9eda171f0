"""Prompts and conversations: does the server read the token ids that the reference reads?"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from trtspec.client._client import Client
from trtspec.client._errors import InvalidArgument, RequestRefused
from trtspec.client._options import Message, Prompt
from trtspec.client.verify.findings import Finding
from trtspec.client.verify.reference import Reference

PART = "tokens"
CONVERSATIONS: tuple[tuple[Message, ...], ...] = (
    ({"role": "user", "content": "Where does the Danube rise?"},),
    (
        {"role": "user", "content": "Name a prime number."},
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "Und noch eine? 🌍"},
    ),
)


def compare_tokens(
    client: Client, reference: Reference, prompts: Sequence[str]
) -> Generator[Finding, None, None]:
    """Yield whether texts are cut alike, BOS included, and conversations rendered alike.

    Raises:
        CallFailed: when an answer did not come.
    """
    for prompt in prompts:
        yield _compare(client, reference, f"prompt {prompt[:40]!r}", prompt, reference.encode(prompt))
    for number, conversation in enumerate(CONVERSATIONS, 1):
        name, rendered = f"conversation {number}", reference.render(conversation)
        if rendered is None:
            yield Finding(PART, name, "skipped", "the reference has no chat template")
        else:
            yield _compare(client, reference, name, list(conversation), rendered)


def _compare(
    client: Client, reference: Reference, name: str, prompt: Prompt, expected: Sequence[int]
) -> Finding:
    try:
        served = client.tokenize(prompt)
    except (RequestRefused, InvalidArgument) as error:
        return Finding(PART, name, "skipped", f"the server does not say how it reads it: {error}")
    if reference.bos_id is not None and list(served[:2]) == [reference.bos_id] * 2:
        return Finding(PART, name, "defect", f"begins with BOS ({reference.bos_id}) twice")
    if list(served) == list(expected):
        return Finding(PART, name, "ok", f"{len(served)} tokens")
    pairs = zip(served, expected, strict=False)
    first = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(served), len(expected)))
    found = f"{len(served)} tokens, expected {len(expected)}; they part at {first}: served "
    return Finding(
        PART,
        name,
        "defect",
        f"{found}{list(served[first : first + 3])}, expected {expected[first : first + 3]}",
    )
