"""FP8 checkpoints that somebody else quantised: what they are, and whether their scales can be right.

Two layouts are read: ModelOpt's unified one (hf_quant_config.json, or quantization_config in
config.json), and that of compressed-tensors, which llm-compressor writes, with a scale for each matrix or
for each of its rows. The codes are kept as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.build.checkpoint import Checkpoint, shown_count
from trtspec.build.convert.e4m3 import E4M3
from trtspec.build.convert.elements import is_float, raw_view, to_float32
from trtspec.build.convert.fp8 import PER_CHANNEL, PER_TENSOR, Fp8Scales, LinearScales
from trtspec.build.convert.linears import module_of
from trtspec.build.json_file import read_object
from trtspec.build.tensor_file import TensorInfo
from trtspec.errors import CheckpointError

QUANT_CONFIG = "hf_quant_config.json"
# Below the name of a matrix, and of an attention module.
MATRIX_SCALES = ("weight_scale", "input_scale")
KEY_SCALES = ("k_proj.k_scale", "k_scale")
VALUE_SCALES = ("v_proj.v_scale", "v_scale")


@dataclass(frozen=True)
class _Scheme:
    """What a checkpoint says about its quantisation."""

    origin: str
    per_channel: bool
    dynamic: bool  # inputs get their scales while the model runs


def read_fp8(checkpoint: Checkpoint) -> Fp8Scales | None:
    """Return the scales of an FP8 checkpoint, checked; None where it is not quantised.

    Raises:
        CheckpointError: it is quantised in another way, or a scale is missing, misshapen, not finite or
            not above zero.
    """
    scheme = _scheme(checkpoint)
    codes = [t for t in checkpoint.tensors.values() if t.dtype == E4M3 and t.name.endswith(".weight")]
    if scheme is None:
        if codes:
            raise CheckpointError(
                f"{checkpoint.path}: {shown_count([t.name for t in codes], 'tensor')}, of FP8 codes, and no "
                f"{QUANT_CONFIG} or quantization_config that says what they mean; fetch all of its files"
            )
        return None
    if not codes:
        raise CheckpointError(
            f"{checkpoint.path}: says that it is FP8, but no weight is; fetch the checkpoint again"
        )
    return _Reader(checkpoint, scheme).scales(codes)


def _scheme(checkpoint: Checkpoint) -> _Scheme | None:
    beside = read_object(checkpoint.path / QUANT_CONFIG, required=False).get("quantization")
    inline = checkpoint.config.get("quantization_config")
    if beside is None and inline is None:
        return None
    found = beside if isinstance(beside, dict) else inline
    if not isinstance(found, dict):
        raise _unknown(checkpoint, f"quantization_config is {found!r}")
    method = found.get("quant_method", "modelopt")
    if method == "modelopt":
        algorithm = found.get("quant_algo")
        if algorithm not in (PER_TENSOR, PER_CHANNEL):
            raise _unknown(checkpoint, f"quant_algo is {algorithm!r}")
        return _Scheme("modelopt", algorithm == PER_CHANNEL, _says_dynamic(inline))
    if method == "compressed-tensors":
        return _compressed_tensors(checkpoint, found)
    raise _unknown(checkpoint, f"quant_method is {method!r}")


def _says_dynamic(inline: object) -> bool:
    if not isinstance(inline, dict):
        return False
    groups = inline.get("config_groups") or {}
    return any((group.get("input_activations") or {}).get("dynamic") for group in groups.values())


def _compressed_tensors(checkpoint: Checkpoint, found: Mapping[str, Any]) -> _Scheme:
    strategies, dynamic = set(), set()
    for group in (found.get("config_groups") or {}).values():
        weights = group.get("weights") or {}
        if weights.get("num_bits") != 8 or weights.get("type") != "float":
            raise _unknown(checkpoint, f"weights are {weights.get('num_bits')} bits {weights.get('type')}")
        strategies.add(weights.get("strategy"))
        inputs = group.get("input_activations")
        if inputs is None:
            raise _unknown(checkpoint, "only weights are quantised, activations are not")
        dynamic.add(bool(inputs.get("dynamic")))
    if len(strategies) != 1 or len(dynamic) != 1 or not strategies <= {"tensor", "channel"}:
        named = ", ".join(sorted(map(str, strategies))) or "none"
        raise _unknown(checkpoint, f"weight strategies are {named}")
    return _Scheme("compressed-tensors", "channel" in strategies, dynamic.pop())


def _unknown(checkpoint: Checkpoint, what: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.path}: quantised, and {what}; read here are ModelOpt's FP8 and compressed-tensors' "
        "8-bit float with a scale for each matrix or row; quantise the original checkpoint instead"
    )


class _Reader:
    """Reads the scales of one checkpoint; faults of a kind are collected."""

    def __init__(self, checkpoint: Checkpoint, scheme: _Scheme) -> None:
        self._checkpoint, self._scheme = checkpoint, scheme
        self._read: set[str] = set()
        self._ones: list[str] = []

    def scales(self, codes: Iterable[TensorInfo]) -> Fp8Scales:
        """Return all scales."""
        codes = list(codes)
        self._check_present(codes)
        linears = {module_of(tensor.name): self._linear(tensor) for tensor in codes}
        cache = self._cache({name.rpartition(".")[0] for name in linears})
        return Fp8Scales(
            linears,
            cache,
            stored=True,
            origin=self._scheme.origin,
            replaced=frozenset(self._read),
            notes=self._notes(),
        )

    def _check_present(self, codes: list[TensorInfo]) -> None:
        kinds = ("weight_scale",) if self._scheme.dynamic else MATRIX_SCALES
        wanted = [f"{module_of(tensor.name)}.{kind}" for tensor in codes for kind in kinds]
        missing = [name for name in wanted if name not in self._checkpoint.tensors]
        if missing:
            raise CheckpointError(
                f"{self._checkpoint.path}: {shown_count(missing, 'scale')}, missing; the codes mean nothing "
                "without them, fetch the checkpoint again"
            )

    def _linear(self, codes: TensorInfo) -> LinearScales:
        module, rows = module_of(codes.name), codes.shape[0]
        weight = self._values(f"{module}.weight_scale", rows if self._scheme.per_channel else 1)
        given = f"{module}.input_scale"
        return LinearScales(
            weight=weight if self._scheme.per_channel else weight.reshape(()),
            input=self._values(given, 1)[0] if given in self._checkpoint.tensors else None,
        )

    def _cache(self, modules: Iterable[str]) -> dict[str, tuple[np.float32, np.float32]]:
        found = {}
        for module in sorted(modules):
            pair = [
                self._values(f"{module}.{name}", 1)[0]
                for names in (KEY_SCALES, VALUE_SCALES)
                for name in names
                if f"{module}.{name}" in self._checkpoint.tensors
            ]
            if len(pair) == 2:
                found[module] = (pair[0], pair[1])
            elif pair:
                raise CheckpointError(
                    f"{self._checkpoint.path}: {module} has {len(pair)} scales for its cache, expected one "
                    "for keys and one for values"
                )
        return found

    def _values(self, name: str, count: int) -> npt.NDArray[np.float32]:
        tensor = self._checkpoint.tensors[name]
        self._read.add(name)
        elements = int(np.prod(tensor.shape))
        if elements != count or not is_float(tensor.dtype):
            raise CheckpointError(
                f"{tensor.file}: scale {name!r} is {tensor.dtype} {list(tensor.shape)}, expected {count} "
                f"floating-point value{'s' if count > 1 else ''}"
            )
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.offset)
            raw = stream.read(tensor.size_bytes)
        values = to_float32(raw_view(memoryview(raw), tensor.element_bytes), tensor.dtype).copy()
        bad = values[~(np.isfinite(values) & (values > 0))]
        if bad.size:
            raise CheckpointError(
                f"{tensor.file}: scale {name!r} is {bad[0]}, expected a finite value above 0; the checkpoint "
                "is damaged or was never calibrated"
            )
        if np.all(values == 1):
            self._ones.append(name)
        return values

    def _notes(self) -> tuple[str, ...]:
        if not self._ones:
            return ()
        return (
            f"{self._checkpoint.path}: {shown_count(self._ones, 'scale')}, exactly 1.0, as placeholders "
            "are: a calibration may never have run; compare its answers before you trust it",
        )
