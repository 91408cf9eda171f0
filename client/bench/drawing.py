"""How pictures look, and how they become files.

Arms differ by colour (Okabe and Ito's, which the colour-blind tell apart), by marker and by line style.
matplotlib is imported when a picture is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

from trtspec.errors import ClientError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
# Of text and axes; a page writes its own colour in its place.
INK = "#1f2328"
SIZE_INCHES = (8.0, 4.2)
DPI = 100  # 800 pixels wide
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "font.size": 11.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.color": INK,
    "svg.fonttype": "none",
    # Ids in an SVG are then the same each time.
    "svg.hashsalt": "trtspec",
}
# Of a legend: how many characters fit into its line, and what the sample of an entry takes of them.
LEGEND_CHARACTERS = 90
SAMPLE_CHARACTERS = 10

Kind = Literal["png", "svg"]


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its file and what it shows."""

    name: str
    title: str
    figure: Figure

    def to_bytes(self, kind: Kind, *, transparent: bool = False) -> bytes:
        """Return the file; the same picture gives the same bytes."""
        buffer = BytesIO()
        # SVG's metadata would hold the time, and addresses of vocabularies.
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type")) if kind == "svg" else {}
        with style():
            self.figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata, transparent=transparent)
        return buffer.getvalue()

    def to_inline_svg(self) -> str:
        """Return it for the middle of a page: in the page's colours, with ids that no other picture has."""
        text = self.to_bytes("svg", transparent=True).decode()
        text = text[text.index("<svg") :]
        text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
        text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{self.name}-", text)
        begin = f'<svg role="img" aria-label="{escape(self.title)}"'
        return text.replace(INK, "currentColor").replace("<svg", begin, 1)


@contextmanager
def style() -> Iterator[None]:
    """Draw in our style.

    Raises:
        ClientError: when matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise ClientError("plots: matplotlib is not installed; run: pip install 'trtspec[bench]'") from error
    with rc_context(STYLE):
        yield


def looks(place: int) -> dict[str, Any]:
    """Return how the curve of an arm looks, by its place among the arms."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": LINES[place % len(LINES)],
        "linewidth": 1.8,
        "marker": MARKERS[place % len(MARKERS)],
        "markersize": 6.5,
    }


def label(name: str) -> str:
    """Return a name as a legend's entry: matplotlib reads $ as mathematics, and hides what begins with _."""
    return f" {name}".replace("$", r"\$") if name.startswith("_") else name.replace("$", r"\$")


def begin(panels: int) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure of panels beside each other."""
    from matplotlib.figure import Figure

    figure = Figure(SIZE_INCHES, dpi=DPI, layout="constrained")
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def finish(name: str, title: str, figure: Figure) -> Picture:
    """Return the picture with its title, and a legend below that all panels share."""
    entries = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.suptitle(title, fontsize=13)
    if entries:
        fitting = LEGEND_CHARACTERS // (max(map(len, entries)) + SAMPLE_CHARACTERS)
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=max(1, min(len(entries), fitting)),
            frameon=False,
            handlelength=4,
        )
    return Picture(name, title, figure)
