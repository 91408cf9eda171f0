"""Calibration: the largest magnitude at the input of every matrix, over the user's texts.

Layer by layer, so memory is one layer and the hidden states of all texts (tokens x hidden size x element
size), whatever the depth. Each layer computes on what the unquantised layers before it gave. The maxima
are those that plain forward hooks on the whole model find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trtspec.build.checkpoint import Checkpoint
from trtspec.build.convert.elements import FLOAT_NAMES
from trtspec.build.convert.formats import FLOATS
from trtspec.build.convert.linears import LayerLinears, find_linears
from trtspec.build.quantize.layers import DTYPES, Hidden, LayeredModel
from trtspec.build.quantize.resume import (
    Progress,
    fingerprint,
    read_progress,
    remove_progress,
    write_progress,
)
from trtspec.build.quantize.scales import main_float
from trtspec.build.quantize.texts import check_lengths
from trtspec.errors import BuildError

Report = Callable[[int, int], None]  # layers done, and of all


@dataclass
class Maxima:
    """The largest magnitudes seen so far."""

    inputs: dict[str, float] = field(default_factory=dict)  # by module
    cache: dict[str, tuple[float, float]] = field(default_factory=dict)  # key and value, by attention module


def calibrate(
    checkpoint: Checkpoint,
    texts: Sequence[Sequence[int]],
    *,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
    kv_cache: bool = False,
    state: Path | None = None,
    report: Report | None = None,
) -> Maxima:
    """Return the largest magnitudes over texts, given as token ids.

    Args:
        dtype: what the layers compute in; None takes the checkpoint's.
        kv_cache: also look at keys, after their rotation, and values.
        state: a folder that holds what is done after each layer, and is taken up again; removed at the end.

    Raises:
        BuildError: there are no texts, or the model cannot read one; a layer yields NaN or Inf; `state` is
            of another calibration.
    """
    if not any(texts):
        raise BuildError("calibration: no texts; give some that are like those the model will be asked")
    check_lengths(texts, checkpoint, "calibration")
    dtype = dtype or named_dtype(main_float(checkpoint))
    settings = {"texts": [list(text) for text in texts], "dtype": str(dtype), "kv_cache": kv_cache}
    mark = fingerprint(checkpoint, settings) if state else ""
    done = read_progress(state, mark) if state else None
    linears = find_linears(checkpoint)
    model = LayeredModel(checkpoint, dtype, device)
    cache = _watching_cache() if kv_cache else None
    entered = model.embed(texts, cache)
    done = done or Progress(0, entered, {}, {})
    maxima = Maxima(dict(done.inputs), dict(done.cache))
    hidden = [states.to(device) for states in done.hidden]
    for index in range(done.layers, len(linears)):
        hidden = _layer(model, index, linears[index], hidden, cache, maxima)
        if state:
            write_progress(state, Progress(index + 1, hidden, maxima.inputs, maxima.cache), mark)
        if report:
            report(index + 1, len(linears))
    if state:
        remove_progress(state)
    return maxima


def named_dtype(name: str) -> torch.dtype:
    """Return the type of one of the names in FLOATS."""
    if name not in FLOATS:
        raise BuildError(f"dtype is {name!r}, expected one of {', '.join(FLOATS)}")
    return DTYPES[FLOATS[name]]


def _layer(
    model: LayeredModel, index: int, linears: LayerLinears, hidden: Hidden, cache: Any, maxima: Maxima
) -> Hidden:
    with model.layer(index) as (module, run), _watched_inputs(module, linears, maxima.inputs):
        left = run(hidden)
    if cache is not None:
        maxima.cache[linears.attention] = cache.take()
    if not all(bool(states.isfinite().all()) for states in left):
        name = FLOAT_NAMES[next(key for key, value in DTYPES.items() if value == left[0].dtype)]
        raise BuildError(
            f"calibration: layer {index} yields NaN or Inf in {name}; the checkpoint is damaged, or its "
            "activations do not fit that type: calibrate in float32"
        )
    return left


@contextmanager
def _watched_inputs(module: nn.Module, linears: LayerLinears, inputs: dict[str, float]) -> Iterator[None]:
    """Raise the maxima of a layer's matrices while it runs."""

    def watch(name: str) -> Any:
        def see(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            inputs[name] = max(inputs.get(name, 0.0), largest(arguments[0]))

        return see

    hooks = [
        module.get_submodule(name.removeprefix(linears.place)).register_forward_pre_hook(watch(name))
        for name in linears.names
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def largest(x: Tensor) -> float:
    """Return the largest magnitude in a tensor."""
    low, high = x.aminmax()
    return max(-float(low), float(high))


def _watching_cache() -> Any:
    """Return a cache of transformers' kind that keeps nothing but the largest key and value."""
    from transformers import DynamicCache

    class WatchingCache(DynamicCache):
        def __init__(self) -> None:
            super().__init__()
            self._largest = (0.0, 0.0)

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            key, value = self._largest
            self._largest = max(key, largest(key_states)), max(value, largest(value_states))
            return key_states, value_states

        def take(self) -> tuple[float, float]:
            """Return the maxima since it was last asked."""
            found, self._largest = self._largest, (0.0, 0.0)
            return found

    return WatchingCache()
