"""What the engines of a pair shall hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.build.quantize.pair_quantizer import PairQuantization
from trtspec.build.runtimes.pytorch.options import PytorchOptions
from trtspec.build.runtimes.tensorrt.options import TensorrtOptions
from trtspec.choices import EngineDtype, Runtime

# A default that fits a laptop; the context of a large model would ask for gigabytes of KV cache.
DEFAULT_MAX_SEQ_LEN = 4096


@dataclass(frozen=True)
class BuildOptions:
    """What the engines of a pair shall hold."""

    runtime: Runtime = "cpu"
    # None: float32 on the cpu runtime, the checkpoint's own for TensorRT-LLM.
    dtype: EngineDtype | None = None
    # Tokens of prompt and answer together; None: the target's context, at most DEFAULT_MAX_SEQ_LEN.
    max_seq_len: int | None = None
    # Sequences in flight.
    max_batch_size: int = 16
    # Draft tokens in a round.
    max_draft_len: int = 8
    # TensorRT-LLM ranks and pipeline stages of each engine.
    tp: int = 1
    pp: int = 1
    # The GPU they are made for, by name or memory, to plan theirs; None: this machine's, if it has one.
    gpu: str | None = None
    # Whether to run the engines on a few prompts and write down what they say, where they run here.
    fingerprint: bool = True
    quantization: PairQuantization = field(default_factory=PairQuantization)
    tensorrt: TensorrtOptions = field(default_factory=TensorrtOptions)
    pytorch: PytorchOptions = field(default_factory=PytorchOptions)
