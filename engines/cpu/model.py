"""The forward pass of Llama, Mistral, Qwen2 and Qwen3 over a preallocated key-value cache.

Shapes: R rows (tokens of all segments), H query heads, K key-value heads, G = H / K, B batch of an
attention (rows or groups), T cached positions, D head size, V vocabulary.

Heads and their coordinates are in the order that layers.py gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .architecture import Architecture
from .layers import Layer, load_ends, load_layer
from .rope import rotation_table
from .weights import Weights

# Key lengths are rounded up to this, and what is beyond masked: the summation order of a row then
# does not depend on how many rows follow it.
_KEY_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one sequence, to be computed at positions start, start + 1, ….

    The last `logit_rows` of them yield logits; the ones before only fill the cache.
    """

    slot: int
    start: int
    ids: Sequence[int]
    logit_rows: int


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows of one segment that attend in the same way, and their part of the cache, layer by layer.

    `rows` of the pass are written to `written` and see `keys` and `values` through `mask` (None:
    causal from position 0). Rows that yield logits attend one by one: as a batch of rows whose
    queries are the G groups; else the groups are the batch, and the rows the queries.
    """

    rows: slice
    written: Sequence[Tensor]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    mask: Tensor | None
    one_by_one: bool


class Model:
    """A decoder with `slots` independent caches of `max_seq_len` positions each."""

    def __init__(
        self,
        architecture: Architecture,
        weights: Weights,
        dtype: torch.dtype,
        *,
        slots: int,
        max_seq_len: int,
    ) -> None:
        self.vocab_size = architecture.vocab_size
        self._arch = architecture
        self._embedding, self._norm, self._head = load_ends(architecture, weights)
        self._layers = [load_layer(architecture, weights, index) for index in range(architecture.layers)]
        weights.finish()
        self._rotations = rotation_table(architecture.rope, architecture.head_dim, max_seq_len)
        keys = _key_blocks(max_seq_len)
        self._positions = torch.arange(keys)
        # Zeros, so that masked keys are finite; the pages are touched only when a slot grows into them.
        shape = (architecture.layers, 2 * architecture.kv_heads, keys, architecture.head_dim)
        self._cache = [torch.zeros(shape, dtype=dtype) for _ in range(slots)]

    def copy_prefix(self, source: int, destination: int, length: int) -> None:
        """Copy the first `length` cached positions of one slot to another."""
        self._cache[destination][:, :, :length] = self._cache[source][:, :, :length]

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> Tensor:
        """Run one pass and return float32 logits [Σ logit_rows, V], segment after segment."""
        ids = torch.tensor([token for segment in segments for token in segment.ids])
        spans, positions, wanted = self._plan(segments)
        rotations = self._rotations[positions].unsqueeze(1)
        x = F.embedding(ids, self._embedding)
        for index, layer in enumerate(self._layers):
            x += self._attention(index, layer, x, rotations, spans)
            x += self._mlp(layer, x)
        if len(wanted) < len(ids):
            x = x[wanted]
        return self._head(self._norm(x)).float()

    def _plan(self, segments: Sequence[Segment]) -> tuple[list[_Span], Tensor, list[int]]:
        """Return the spans, the position of each row, and the rows that yield logits."""
        spans: list[_Span] = []
        positions: list[int] = []
        wanted: list[int] = []
        for segment in segments:
            first, end = len(positions), segment.start + len(segment.ids)
            positions += range(segment.start, end)
            split = len(positions) - segment.logit_rows
            tested = end - segment.logit_rows
            if split > first:
                mask = self._mask(segment.start, tested, tested) if segment.start else None
                spans.append(self._span(segment, slice(first, split), segment.start, tested, mask))
            if segment.logit_rows:
                mask = self._mask(tested, end, _key_blocks(end))[:, None, None]
                spans.append(
                    self._span(segment, slice(split, len(positions)), tested, _key_blocks(end), mask)
                )
            wanted += range(split, len(positions))
        return spans, torch.tensor(positions), wanted

    def _span(self, segment: Segment, rows: slice, start: int, keys: int, mask: Tensor | None) -> _Span:
        cache, kv_heads = self._cache[segment.slot], self._arch.kv_heads
        one_by_one = mask is not None and mask.dim() == 4
        batch = rows.stop - rows.start if one_by_one else self._arch.heads // kv_heads
        shared = cache[:, None, :, :keys].expand(-1, batch, -1, -1, -1)
        return _Span(
            rows=rows,
            written=cache[:, :, start : start + rows.stop - rows.start].unbind(),
            keys=shared[:, :, :kv_heads].unbind(),
            values=shared[:, :, kv_heads:].unbind(),
            mask=mask,
            one_by_one=one_by_one,
        )

    def _mask(self, start: int, end: int, keys: int) -> Tensor:
        """Return the additive mask [end - start, keys] of the rows at those positions."""
        hidden = self._positions[:keys] > self._positions[start:end, None]
        return torch.zeros(hidden.shape, dtype=self._embedding.dtype).masked_fill_(hidden, float("-inf"))

    def _attention(
        self, index: int, layer: Layer, x: Tensor, rotations: Tensor, spans: Sequence[_Span]
    ) -> Tensor:
        heads, kv_heads, head_dim = self._arch.heads, self._arch.kv_heads, self._arch.head_dim
        qkv = layer.qkv(layer.attention_norm(x)).view(len(x), heads + 2 * kv_heads, head_dim)
        qk = qkv[:, : heads + kv_heads]
        if layer.qk_norm is not None:
            qk.copy_(layer.qk_norm(qk))
        _rotate(qk, rotations)
        q, kv = qkv[:, :heads], qkv[:, heads:].transpose(0, 1)
        attended = []
        for span in spans:
            span.written[index].copy_(kv[:, span.rows])
            attended.append(_attend(q[span.rows], span.keys[index], span.values[index], span))
        return layer.output(attended[0] if len(attended) == 1 else torch.cat(attended))

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, dim=-1)
        return layer.down(F.silu(gate).mul_(up))


def _key_blocks(length: int) -> int:
    return -(-length // _KEY_BLOCK) * _KEY_BLOCK


def _rotate(qk_RHD: Tensor, rotations_R1D2: Tensor) -> None:
    """Apply RoPE in place; consecutive coordinates are the real and imaginary parts."""
    exact = qk_RHD if qk_RHD.dtype == torch.float32 else qk_RHD.float()
    torch.view_as_complex(exact.view(*exact.shape[:-1], -1, 2)).mul_(rotations_R1D2)
    if exact is not qk_RHD:
        qk_RHD.copy_(exact)


def _attend(q_RHD: Tensor, keys_BKTD: Tensor, values_BKTD: Tensor, span: _Span) -> Tensor:
    """Return the attention of the span's rows, [R, H · D]; key-value heads are shared without copies."""
    rows, _, head_dim = q_RHD.shape
    q_RGKD = q_RHD.view(rows, -1, keys_BKTD.shape[1], head_dim)
    attended = F.scaled_dot_product_attention(
        q_RGKD.permute(0, 2, 1, 3) if span.one_by_one else q_RGKD.permute(1, 2, 0, 3),
        keys_BKTD,
        values_BKTD,
        attn_mask=span.mask,
        is_causal=span.mask is None,
    )
    back = attended.permute(0, 2, 1, 3) if span.one_by_one else attended.permute(2, 0, 1, 3)
    return back.reshape(rows, -1)
