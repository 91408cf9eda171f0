"""The choices of a quantisation, light enough for the command to import."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Quantization = Literal["none", "fp8"]
Device = Literal["cpu", "cuda"]

QUANTIZATIONS: tuple[Quantization, ...] = ("none", "fp8")
DEVICES: tuple[Device, ...] = ("cpu", "cuda")

CALIBRATE_HELP = (
    "Texts to find activation scales on: .jsonl or a text a line, like those the model will be asked; "
    "none: the runtime finds the scales.  [default: 24 texts that ship]"
)

# Both formats, from one calibration.
BOTH = "both"


def read_calibrate(value: str | None) -> Path | Literal["none"] | None:
    """Return what --calibrate was given as the library takes it; None stands for the texts that ship."""
    if value is None:
        return None
    return "none" if value == "none" else Path(value)
