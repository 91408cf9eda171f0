"""The memory plan of a build: whether both engines will fit the GPU they are made for."""

from __future__ import annotations

from trtspec.build.check.drafters import identify
from trtspec.build.check.model_shape import shape_of
from trtspec.build.checkpoint import Checkpoint
from trtspec.build.decoder import decoder_of_checkpoint
from trtspec.build.options import BuildOptions
from trtspec.engines.host import HostFacts, read_host_facts
from trtspec.engines.memory.gpus import find_gpu, gpu_of
from trtspec.engines.memory.plan import plan_memory
from trtspec.engines.memory.pools import Deployment
from trtspec.engines.memory.ranks import Dtype, Engine, Limits
from trtspec.engines.memory.result import MemoryPlan

DTYPES: dict[str, Dtype] = {"F32": "float32", "F16": "float16"}


def plan_build(
    target: Checkpoint,
    draft: Checkpoint | None,
    options: BuildOptions,
    max_seq_len: int,
    host: HostFacts | None = None,
) -> MemoryPlan | None:
    """Return what the engines will take of `options.gpu`, or of this machine's GPU.

    None on the cpu runtime, where no GPU is named and there is none here, and where the drafter is no
    model of its own, which the plan does not know.

    Raises:
        PlanError: they cannot fit; the message says what would.
    """
    if options.runtime == "cpu" or draft is None or not identify(draft).stand_alone:
        return None
    host = host or read_host_facts()
    if options.gpu is None and not host.gpus:
        return None
    wanted, tensorrt = options.quantization, options.tensorrt
    limits = Limits(
        max_seq_len=max_seq_len,
        max_batch_size=options.max_batch_size,
        max_draft_len=options.max_draft_len,
        max_num_tokens=tensorrt.max_num_tokens or Limits().max_num_tokens,
        use_draft_logits=tensorrt.acceptance != "tokens",
    )
    deployment = Deployment(
        target=_engine(target, options, options.tp, options.pp, fp8=wanted.target == "fp8"),
        draft=_engine(
            draft,
            options,
            tensorrt.draft_tp or options.tp,
            tensorrt.draft_pp or options.pp,
            fp8=wanted.draft == "fp8",
        ),
        gpu=find_gpu(options.gpu) if options.gpu else gpu_of(host),
        limits=limits,
        runtime=options.runtime,
    )
    return plan_memory(deployment)


def _engine(checkpoint: Checkpoint, options: BuildOptions, tp: int, pp: int, *, fp8: bool) -> Engine:
    return Engine(
        decoder=decoder_of_checkpoint(checkpoint, checkpoint.path.name),
        tp=tp,
        pp=pp,
        dtype=options.dtype or DTYPES.get(shape_of(checkpoint).dtype, "bfloat16"),
        fp8=fp8,
        fp8_kv_cache=options.tensorrt.kv_cache == "fp8",
    )
