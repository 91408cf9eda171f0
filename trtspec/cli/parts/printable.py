"""Words of servers and files, as a terminal may show them."""

from __future__ import annotations

import re

# C0 and C1 without tab and line end: what moves the cursor, clears the screen, or sets its title.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return a text whose control characters are written out, as \\x1b."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
