"""What a build for TensorRT-LLM may be asked, one typed field for each choice.

A field with a text is a flag of the command, and the text its help. Lengths, batch sizes and what
draft-target needs of `trtllm-build` are no choices: `commands` sets them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

Compile = Literal["here", "container", "later"]
Acceptance = Literal["tokens", "logits"]
LogitsDtype = Literal["float32", "float16"]
CacheQuantization = Literal["fp8"]
TokensPerBlock = Literal[16, 32, 64, 128]
GemmPlugin = Literal["auto", "fp8", "disable"]


@dataclass(frozen=True, kw_only=True)
class TensorrtOptions:
    """What the engines shall hold beyond `BuildOptions`, and where they are compiled."""

    # here: with the trtllm-build on PATH; later: converted checkpoints, for a script to compile.
    compile: Compile = "here"
    image: str | None = None  # of the container; None: the newest that has TensorRT-LLM 1.2.1

    draft_tp: Annotated[int | None, "Tensor-parallel ranks of the draft.  [default: as the target]"] = None
    draft_pp: Annotated[int | None, "Pipeline stages of the draft.  [default: as the target]"] = None
    acceptance: Annotated[
        Acceptance,
        "How draft tokens may be accepted: by the target's tokens; or by both models' probabilities too, "
        "for which both engines hand out their logits.",
    ] = "tokens"
    logits_dtype: Annotated[LogitsDtype, "What logits are handed out in."] = "float32"
    kv_cache: Annotated[
        CacheQuantization | None,
        "Quantise the key-value caches; both models have to be FP8.  [default: as the checkpoints]",
    ] = None
    max_num_tokens: Annotated[
        int | None, "Tokens that an engine computes at once.  [default: 8192 or the longest sequence]"
    ] = None
    opt_num_tokens: Annotated[int | None, "How many tokens at once the kernels are chosen for."] = None
    tokens_per_block: Annotated[TokensPerBlock, "Tokens in a block of the key-value cache."] = 32
    gemm_plugin: Annotated[
        GemmPlugin | None,
        "What multiplies matrices.  [default: auto; disable, that is TensorRT itself, where FP8]",
    ] = None
    low_latency_gemm: Annotated[bool, "Kernels for small batches, of FP8 engines."] = False
    gemm_swiglu: Annotated[bool, "One kernel for gate, up and SwiGLU, of FP8 engines on Hopper."] = False
    fused_mlp: Annotated[bool, "Multiply by gate and up in one product."] = True
    reduce_fusion: Annotated[bool, "All-reduce and norm in one kernel, of Llama and Gemma-2 on ranks."] = (
        False
    )
    user_buffer: Annotated[bool, "All-reduce without a copy, of FP8 Llama with --reduce-fusion."] = False
    multiple_profiles: Annotated[bool, "Choose kernels for several numbers of tokens; builds longer."] = False
    workers: Annotated[
        int | None, "Ranks compiled at once, each on a GPU.  [default: all that there are]"
    ] = None
