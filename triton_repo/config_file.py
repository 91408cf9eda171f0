"""One `config.pbtxt`: what it says, and on which line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from trtspec.triton_repo.contract import Tensor
from trtspec.triton_repo.leaf_parameters import PLACEHOLDER, is_set

# A parameter's value; a placeholder there is text, and reads as "not set".
PARAMETER_VALUE = re.compile(r'string_value\s*:\s*"[^"]*$')


@dataclass(frozen=True)
class ConfigFile:
    """A model's configuration as it was written."""

    path: Path
    text: str

    @property
    def model(self) -> str:
        """The folder's name, which Triton wants the model to have."""
        return self.path.parent.name

    @cached_property
    def parsed(self) -> ModelConfig | str:
        """The configuration, or the reason why it is none."""
        try:
            return text_format.Parse(self.text, ModelConfig())
        except text_format.ParseError as error:
            return str(error)

    @property
    def config(self) -> ModelConfig | None:
        return None if isinstance(self.parsed, str) else self.parsed

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The parameters that say anything."""
        if self.config is None:
            return {}
        values = {key: entry.string_value for key, entry in self.config.parameters.items()}
        return {key: value for key, value in values.items() if is_set(value)}

    def placeholders(self, *, in_parameters: bool) -> Iterator[tuple[int, str]]:
        """Yield (line, placeholder), either those that parameters have for a value or the others."""
        for number, line in enumerate(self.text.splitlines(), 1):
            code = line.split("#")[0]
            for match in PLACEHOLDER.finditer(code):
                if bool(PARAMETER_VALUE.search(code[: match.start()])) == in_parameters:
                    yield number, match[0]

    def line_of(self, field: str, value: str, *, last: bool = False) -> int | None:
        """Return the first (or last) line with `field: "value"`."""
        pattern = re.compile(rf'\b{field}\s*:\s*"{re.escape(value)}"')
        lines = [number for number, line in enumerate(self.text.splitlines(), 1) if pattern.search(line)]
        return lines[-1 if last else 0] if lines else None

    def line_of_field(self, field: str) -> int | None:
        """Return the first line that sets a field."""
        pattern = re.compile(rf"^\s*{field}\s*[:{{\[]")
        lines = (number for number, line in enumerate(self.text.splitlines(), 1) if pattern.search(line))
        return next(lines, None)


def tensors(config: ModelConfig) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the inputs and the outputs of a model, by name."""
    inputs = {
        entry.name: Tensor(
            entry.name,
            _dtype(entry.data_type),
            tuple(entry.dims),
            optional=entry.optional,
            ragged=entry.allow_ragged_batch,
            scalar=entry.HasField("reshape") and not entry.reshape.shape,
        )
        for entry in config.input
    }
    outputs = {
        entry.name: Tensor(entry.name, _dtype(entry.data_type), tuple(entry.dims), optional=False)
        for entry in config.output
    }
    return inputs, outputs


def _dtype(value: int) -> str:
    return str(DataType.Name(value)).removeprefix("TYPE_")
