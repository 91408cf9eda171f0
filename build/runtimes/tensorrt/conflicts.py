"""What options exclude each other, or the models: found before anything starts, all of it at once.

`trtllm-build` warns about most of these, switches the option off and goes on, or fails after minutes
(TensorRT-LLM 1.2: commands/build.py, builder.py, plugin/plugin.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

from trtspec.build.options import BuildOptions
from trtspec.build.runtimes.tensorrt.options import TensorrtOptions
from trtspec.engines.host import gpu_problem, min_sm

PER_TENSOR = "FP8"
PER_ROW = "FP8_PER_CHANNEL_PER_TOKEN"

# Paged context attention, without which no cache is reused, came with Ampere.
LOWEST_SM = 80
HOPPER = 90
BLACKWELL = range(100, 120)
FUSED_REDUCTION = ("LlamaForCausalLM", "Gemma2ForCausalLM")

# Engines count tokens in 32 bits.
MOST_TOKENS = 2**31 - 1

Faults = Sequence[tuple[bool, str]]


@dataclass(frozen=True)
class Model:
    """One model of the pair, as `trtllm-build` meets it."""

    role: str
    architecture: str
    dtype: str
    quantization: str | None  # quant_algo of the checkpoint
    fp8_cache: bool
    tp: int
    pp: int
    context: int  # tokens that the model reads

    @property
    def fp8(self) -> bool:
        """Whether each matrix has one scale, as the FP8 kernels need it."""
        return self.quantization == PER_TENSOR


def option_faults(options: BuildOptions) -> list[str]:
    """Return what is wrong with the options, whatever the models are."""
    return [
        *_choice_faults(options.tensorrt),
        *_number_faults(options),
        *_quantization_faults(options),
        *_kernel_faults(options.tensorrt),
    ]


def model_faults(options: BuildOptions, models: Sequence[Model]) -> list[str]:
    """Return where the options do not suit the models."""
    asked, target = options.tensorrt, models[0]
    fp8 = [model for model in models if model.fp8]
    faults: Faults = (
        *(
            (
                model.dtype == "float32",
                f"the {model.role}'s weights are float32, which has no paged context attention: give --dtype "
                "bfloat16 or float16",
            )
            for model in models
        ),
        *(
            (
                model.fp8_cache and not model.fp8,
                f"the {model.role} has an FP8 cache without FP8 matrices: trtllm-build would switch off "
                "paged context attention, without which no cache is reused",
            )
            for model in models
        ),
        (asked.kv_cache == "fp8" and not all(m.fp8_cache for m in models), _no_cache(models)),
        (asked.gemm_plugin == "fp8" and not fp8, "--gemm-plugin fp8 is for FP8 engines, and neither is one"),
        (asked.low_latency_gemm and not fp8, "--low-latency-gemm is for FP8 engines, and neither is one"),
        (asked.gemm_swiglu and not fp8, "--gemm-swiglu is for FP8 engines, and neither is one"),
        (
            asked.reduce_fusion and (target.tp == 1 or target.architecture not in FUSED_REDUCTION),
            f"--reduce-fusion is for {' and '.join(FUSED_REDUCTION)} on several ranks; the target is "
            f"{target.architecture} with --tp {target.tp}",
        ),
        (
            asked.user_buffer and not (target.fp8 and target.architecture == "LlamaForCausalLM"),
            "--user-buffer is for an FP8 LlamaForCausalLM; the target is "
            f"{target.quantization or 'unquantised'}, {target.architecture}",
        ),
    )
    return [message for wrong, message in faults if wrong]


def length_faults(max_seq_len: int, models: Sequence[Model]) -> list[str]:
    """Return where a model reads less than the engines shall hold: the draft has to reach as far."""
    return [
        f"the {model.role} reads {model.context} tokens, the engines shall hold {max_seq_len}: give "
        f"--max-seq-len {model.context}, or take another draft"
        for model in models
        if model.context < max_seq_len
    ]


def token_faults(options: BuildOptions, max_num_tokens: int) -> list[str]:
    """Return where kernels are chosen for more tokens at once than an engine computes."""
    wanted = options.tensorrt.opt_num_tokens
    if wanted is None or wanted <= max_num_tokens:
        return []
    return [f"--opt-num-tokens {wanted} is more than --max-num-tokens, {max_num_tokens}"]


def gpu_faults(options: BuildOptions, models: Sequence[Model], sm: int) -> list[str]:
    """Return what the GPU that compiles, of compute capability `sm`, has no kernels for."""
    asked = options.tensorrt
    too_old = gpu_problem(min_sm(fp8=any(model.quantization for model in models)), sm)
    rows = [model.role for model in models if model.quantization == PER_ROW]
    faults: Faults = (
        (sm < LOWEST_SM, f"engines need SM{LOWEST_SM} or newer (Ampere), this GPU is SM{sm}"),
        (sm >= LOWEST_SM and too_old is not None, too_old or ""),
        (asked.gemm_swiglu and sm != HOPPER, f"--gemm-swiglu is for Hopper, SM{HOPPER}; this GPU is SM{sm}"),
        (
            asked.low_latency_gemm and sm in BLACKWELL,
            f"--low-latency-gemm has no kernels for this GPU, SM{sm}",
        ),
        (
            bool(rows) and sm in BLACKWELL,
            f"{' and '.join(rows)}: FP8 with a scale for each row has no kernels for this GPU, SM{sm}",
        ),
    )
    return [message for wrong, message in faults if wrong]


def _choice_faults(asked: TensorrtOptions) -> list[str]:
    """Return the fields whose value is none of their choices."""
    faults = []
    for name, hint in get_type_hints(TensorrtOptions).items():
        kinds = get_args(hint) if get_origin(hint) is not Literal else (hint,)
        allowed = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
        value = getattr(asked, name)
        if allowed and value not in allowed and not (value is None and NoneType in kinds):
            faults.append(f"{name} is {value!r}, expected one of {', '.join(map(str, allowed))}")
    return faults


def _number_faults(options: BuildOptions) -> Iterator[str]:
    """Yield the numbers that are too small, or too large for an engine."""
    asked = options.tensorrt
    numbers = ("draft_tp", "draft_pp", "max_num_tokens", "opt_num_tokens", "workers")
    too_small = [name for name in numbers if (value := getattr(asked, name)) is not None and value < 1]
    if too_small:
        yield f"{', '.join(too_small)}: expected at least 1"
    drafted = options.max_batch_size * (options.max_draft_len + 1)
    if asked.max_num_tokens is not None and asked.max_num_tokens < drafted:
        yield (
            f"--max-num-tokens {asked.max_num_tokens} is less than a round of all sequences takes, "
            f"{options.max_batch_size} × ({options.max_draft_len} + 1) = {drafted}"
        )
    if drafted > MOST_TOKENS:
        yield (
            f"--max-batch-size {options.max_batch_size} with {options.max_draft_len} draft tokens makes "
            f"rounds of {drafted} tokens, an engine counts to {MOST_TOKENS}"
        )


def _quantization_faults(options: BuildOptions) -> Iterator[str]:
    """Yield what no weights or caches can be stored as, and what is asked of FP8 without it."""
    asked = options.quantization
    fp8 = "fp8" in (asked.target, asked.draft)
    if options.dtype == "float32":
        yield (
            "--dtype float32 has no paged context attention, which draft-target needs: give bfloat16 or "
            "float16"
        )
    if asked.calibrate is not None and not fp8:
        yield "--calibrate is for --quantization fp8, which is not asked for"
    if asked.max_kl is not None or asked.evaluate is not None:
        yield "--max-kl and --evaluate measure on the cpu runtime: build the pair with --runtime cpu for that"
    if options.tensorrt.kv_cache is not None and not fp8:
        yield "--kv-cache fp8 needs --quantization fp8; a checkpoint that is FP8 already keeps its cache"


def _kernel_faults(asked: TensorrtOptions) -> Iterator[str]:
    """Yield which choices of how to compile exclude, or want, each other."""
    if asked.multiple_profiles and asked.opt_num_tokens is not None:
        yield "--multiple-profiles looks for the best numbers of tokens itself: leave --opt-num-tokens out"
    if asked.user_buffer and not asked.reduce_fusion:
        yield "--user-buffer needs --reduce-fusion"
    if asked.gemm_swiglu and not asked.fused_mlp:
        yield "--gemm-swiglu needs --fused-mlp"
    if asked.low_latency_gemm and asked.gemm_plugin not in (None, "disable"):
        yield f"--low-latency-gemm and --gemm-plugin {asked.gemm_plugin} are for the same products: give one"
    if asked.image is not None and asked.compile != "container":
        yield f"image {asked.image} is given, and no container is asked for"


def _no_cache(models: Sequence[Model]) -> str:
    lacking = " and ".join(model.role for model in models if not model.fp8_cache)
    return (
        f"--kv-cache fp8: the {lacking} would not have an FP8 cache; quantise both models, from "
        "checkpoints that are not FP8 yet"
    )
