"""JSON files: one that has to hold an object, and one of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtspec.errors import CheckpointError


def read_object(file: Path, *, required: bool = True) -> dict[str, Any]:
    """Return the object in a JSON file; {} where the file is absent and not required.

    Raises:
        CheckpointError: the file is absent, cannot be read, or holds no JSON object.
    """
    if not required and not file.exists():
        return {}
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing; expected a Hugging Face checkpoint") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not valid JSON ({error}); fetch it again") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: holds a JSON {type(found).__name__}, expected an object")
    return found


def write_json(file: Path, value: Any) -> None:
    """Write a value; equal values give equal bytes."""
    file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")
