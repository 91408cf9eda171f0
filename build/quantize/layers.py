"""A causal language model of transformers, run with one decoder layer in memory at a time.

The model is built without weights; its own forward pass runs once over stand-ins that note what each
layer would be called with (masks, rotations), and each layer then gets its weights, runs over all texts,
and loses them. So every family is computed by its own code, and memory is one layer, the hidden states
of the texts, and for logits the head.

Shapes: T tokens of one text, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trtspec.build.checkpoint import Checkpoint
from trtspec.build.convert.families import family_of
from trtspec.build.convert.fp8 import Fp8Scales
from trtspec.build.convert.linears import model_prefix
from trtspec.build.tensor_file import TensorInfo
from trtspec.engines.cpu.fp8 import dequantise, fake_quantise
from trtspec.engines.cpu.transformers_model import cache_argument
from trtspec.errors import BuildError, CheckpointError

DTYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}

Hidden = list[Tensor]  # [1, T, H] of each text
Layer = Callable[[Hidden], Hidden]


def read_tensor(tensor: TensorInfo) -> Tensor:
    """Return a tensor of a checkpoint, mapped: its pages are the file's, until somebody writes to them."""
    if tensor.dtype not in DTYPES:
        raise CheckpointError(
            f"{tensor.file}: {tensor.name} is {tensor.dtype}, expected one of {', '.join(DTYPES)}"
        )
    raw = np.memmap(tensor.file, np.uint8, mode="c", offset=tensor.offset, shape=(tensor.size_bytes,))
    if tensor.offset % tensor.element_bytes:
        raw = raw.copy()  # torch computes on aligned elements only
    return torch.from_numpy(raw).view(DTYPES[tensor.dtype]).view(tensor.shape)


def read_rows(tensor: TensorInfo, rows: Sequence[int]) -> Tensor:
    """Return some rows of a matrix; the others are not read."""
    mapped = np.memmap(
        tensor.file,
        dtype=np.uint8,
        mode="r",
        offset=tensor.offset,
        shape=(tensor.shape[0], tensor.size_bytes // tensor.shape[0]),
    )
    return torch.from_numpy(mapped[list(rows)]).view(DTYPES[tensor.dtype])


@dataclass(frozen=True)
class _Call:
    """What the model calls one layer with, besides the hidden states."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]


class _StandIn(nn.Module):
    """Stands where a layer is: notes its call, and returns the hidden states, or those it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.call: _Call | None = None
        self.output: Tensor | None = None

    def forward(self, hidden: Tensor, *arguments: Any, **options: Any) -> Tensor:
        self.call = _Call(arguments, options)
        return hidden if self.output is None else self.output


class LayeredModel:
    """The decoder of a checkpoint, layer by layer.

    Args:
        dtype: what it computes in.
        fp8: the scales of an FP8 checkpoint: weights are dequantised, inputs rounded as its kernels do.

    Raises:
        CheckpointError, BuildError: transformers cannot build it.
    """

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, device: str = "cpu", fp8: Fp8Scales | None = None
    ) -> None:
        self._checkpoint, self._dtype, self._device, self._fp8 = checkpoint, dtype, device, fp8
        self._family = family_of(checkpoint.architecture)
        self._prefix = model_prefix(checkpoint, self._family)
        self._model = _without_weights(checkpoint, dtype, device)
        self._decoder = self._model.base_model
        self._layers: nn.ModuleList = getattr(self._decoder, self._layers_name)
        self._stand_ins = nn.ModuleList(_StandIn() for _ in self._layers)
        setattr(self._decoder, self._layers_name, self._stand_ins)
        self._calls: list[list[_Call]] = []
        self._load_ends()

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self._layers)

    def embed(self, texts: Sequence[Sequence[int]], cache: object = None) -> Hidden:
        """Return what enters the first layer, and note the calls of all.

        Only the rows of the embedding that occur are read.

        Args:
            cache: of transformers' kind, handed to the layers.
        """
        table = self._model.get_input_embeddings()
        ids = sorted({token for text in texts for token in text})
        place = {token: row for row, token in enumerate(ids)}
        rows = read_rows(self._tensor(self._embedding), ids)
        table.weight = nn.Parameter(rows.to(self._device, self._dtype), requires_grad=False)
        hidden = []
        self._calls = []
        for text in texts:
            local = torch.tensor([[place[token] for token in text]], device=self._device)
            entered: list[Tensor] = []
            hook = self._stand_ins[0].register_forward_pre_hook(
                lambda module, inputs, entered=entered: entered.append(inputs[0])
            )
            with torch.inference_mode():
                self._forward_decoder(cache, input_ids=local)
            hook.remove()
            hidden.append(entered[0])
            self._calls.append([stand_in.call for stand_in in self._stand_ins])  # type: ignore[misc]
        table.to("meta")
        return hidden

    @contextmanager
    def layer(self, index: int) -> Iterator[tuple[nn.Module, Layer]]:
        """Load one layer; yields its module, and a function that runs it over the texts."""
        module = self._layers[index]
        place = self._prefix + self._family.layers.format(index)
        module.load_state_dict(self._state(module, place), assign=True)
        hooks = self._round_inputs(module, place)

        @torch.inference_mode()
        def run(hidden: Hidden) -> Hidden:
            calls = [calls[index] for calls in self._calls]
            return [
                _first(module(states, *call.arguments, **call.options))
                for states, call in zip(hidden, calls, strict=True)
            ]

        try:
            yield module, run
        finally:
            for hook in hooks:
                hook.remove()
            module.to("meta")

    def load_head(self) -> None:
        """Read the head, for `logits`."""
        name = "lm_head.weight" if "lm_head.weight" in self._checkpoint.tensors else self._embedding
        weight = read_tensor(self._tensor(name)).to(self._device, self._dtype)
        self._model.get_output_embeddings().weight = nn.Parameter(weight, requires_grad=False)

    @torch.inference_mode()
    def logits(self, hidden_TH: Tensor) -> Tensor:
        """Return the logits [T, V], in float32, of what left the last layer."""
        last = self._stand_ins[-1]
        assert isinstance(last, _StandIn)
        last.output = hidden_TH[None]
        try:
            entered = torch.zeros_like(last.output)
            logits: Tensor = self._model(inputs_embeds=entered, use_cache=False).logits
        finally:
            last.output = None
        return logits[0].float()

    @property
    def _layers_name(self) -> str:
        return self._family.layers.partition(".")[0]

    @property
    def _embedding(self) -> str:
        d = self._family.dimensions(self._checkpoint.config, self._checkpoint.vocab_size)
        (part,) = self._family.embeddings(d)["vocab_embedding.weight"].parts
        return self._prefix + part.source

    def _tensor(self, name: str) -> TensorInfo:
        found = self._checkpoint.tensors.get(name)
        if found is None:
            raise CheckpointError(
                f"{self._checkpoint.path}: no tensor {name!r}, which config.json implies; fetch the "
                "checkpoint again"
            )
        return found

    def _load_ends(self) -> None:
        """Load what is neither in a layer nor the embedding nor the head: norms and learned positions."""
        table = self._model.get_input_embeddings().weight
        state = {
            name: parameter for name, parameter in self._decoder.named_parameters() if parameter is not table
        }
        loaded = {
            name: read_tensor(self._tensor(self._prefix + name)).to(self._device, self._dtype)
            for name in state
        }
        self._decoder.load_state_dict(loaded, assign=True, strict=False)

    def _state(self, module: nn.Module, place: str) -> dict[str, Tensor]:
        """Return the weights of one layer in the type it computes in."""
        found = {}
        for name, expected in module.state_dict().items():
            tensor = self._tensor(place + name)
            value = read_tensor(tensor).to(self._device)
            scales = self._fp8.linears.get((place + name).removesuffix(".weight")) if self._fp8 else None
            if scales is not None:
                value = dequantise(value, torch.from_numpy(np.array(scales.weight)).to(self._device))
            if value.shape != expected.shape:
                raise CheckpointError(
                    f"{self._checkpoint.path}: {tensor.name} has shape {list(value.shape)}, config.json "
                    f"implies {list(expected.shape)}"
                )
            found[name] = value.to(self._dtype)
        return found

    def _round_inputs(self, module: nn.Module, place: str) -> list[Any]:
        hooks = []
        for name, linear in module.named_modules():
            scales = self._fp8.linears.get(place + name) if self._fp8 else None
            if scales is not None:
                scale = None if scales.input is None else float(scales.input)
                hooks.append(
                    linear.register_forward_pre_hook(
                        lambda module, inputs, scale=scale: fake_quantise(inputs[0], scale)
                    )
                )
        return hooks

    def _forward_decoder(self, cache: object, **inputs: Any) -> None:
        """Run the decoder over its stand-ins."""
        self._decoder(**inputs, use_cache=cache is not None, **{cache_argument(self._decoder): cache})


def _first(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _without_weights(checkpoint: Checkpoint, dtype: torch.dtype, device: str) -> Any:
    """Return the model with parameters on the meta device, and the buffers that it computes itself."""
    if device == "cuda" and not torch.cuda.is_available():
        raise BuildError("--device cuda: torch finds no CUDA device; take --device cpu")
    from transformers import AutoConfig, AutoModelForCausalLM

    auto_model: Any = AutoModelForCausalLM
    try:
        config = AutoConfig.from_pretrained(checkpoint.path, local_files_only=True, trust_remote_code=False)
        # Dequantised here; transformers would take the codes for weights.
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        with torch.device("meta"):
            model = auto_model.from_config(config, dtype=dtype, trust_remote_code=False).eval()
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{checkpoint.path}: transformers cannot build it ({error})") from error
    for module in model.modules():
        buffers = dict(module.named_buffers(recurse=False))
        if not buffers:
            continue
        for name, buffer in buffers.items():
            empty = torch.full_like(buffer, float("nan"), device=device)
            setattr(module, name, empty)
        with torch.no_grad():
            model._init_weights(module)  # from_pretrained's own way to fill them
        left = [name for name in buffers if getattr(module, name).isnan().any()]
        if left:
            raise BuildError(
                f"{checkpoint.path}: transformers left buffer {left[0]!r} of {type(module).__name__} "
                "unset; use transformers 5"
            )
    return model
