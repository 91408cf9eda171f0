"""Rules about the text of configurations."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trtspec.triton_repo.layout import Layout
from trtspec.triton_repo.lint.finding import Complaint


def unreadable(layout: Layout) -> Iterator[Complaint]:
    for file in layout.models.values():
        # A placeholder is the reason then, and has its own rule.
        if isinstance(file.parsed, str) and not any(file.placeholders(in_parameters=False)):
            place = re.match(r"(\d+):\d+ : (.*)", file.parsed, re.DOTALL)
            line, reason = (int(place[1]), place[2]) if place else (None, file.parsed)
            reason = " ".join(reason.split())
            yield Complaint(
                file.path, f"Triton cannot read it: {reason}", "mend the line, or write it again", line
            )


def placeholder(layout: Layout) -> Iterator[Complaint]:
    for file in layout.models.values():
        for line, name in file.placeholders(in_parameters=False):
            message = f"{name} was not filled in, so the file does not parse or names nothing"
            yield Complaint(file.path, message, "put the value there", line)


def unset_parameter(layout: Layout) -> Iterator[Complaint]:
    for file in layout.models.values():
        found = list(file.placeholders(in_parameters=True))
        if found:
            (line, first), more = found[0], len(found) - 1
            message = f"{first}{f' and {more} more' if more else ''} not filled in: defaults apply"
            yield Complaint(file.path, message, "give a value, or remove the parameter", line)
