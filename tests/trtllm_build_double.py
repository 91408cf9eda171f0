"""A double of `trtllm-build` 1.2.1: takes the flags of the real one, refuses what it refuses, builds nothing.

What it writes has the schema of a real engine folder, with everything switched off that the real one
would switch off. `install` puts it on a PATH. It fails on demand, by the environment:

    TRTLLM_BUILD_FAULT   exit, hang, version, speculation, paged, logits, rank, config, engine
    TRTLLM_BUILD_FAULTY  the role that fails, target or draft (default: both)
    TRTLLM_BUILD_OTHER_FAULT  what the other role does (default: nothing wrong)
    TRTLLM_BUILD_MEETS   set: a run waits until that of the other role has begun, and fails if it does not
    TRTLLM_BUILD_CALLS   a file that gets one line of JSON when a run begins and one when it ends
    TRTLLM_BUILD_SM      compute capability of the GPU it pretends to have (90)
    TRTLLM_BUILD_VERSION the release it says it is (1.2.1)
    TRTLLM_BUILD_GPUS    how many, where CUDA_VISIBLE_DEVICES does not say (1)

Written from the contract alone; it shares no code with what it tests.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trtllm_build_flags import FLAGS

VERSION = "1.2.1"
MODES = {None: 1, "draft_tokens_external": 2, "medusa": 4, "lookahead_decoding": 8, "eagle": 32}
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ARCHITECTURES += ("MixtralForCausalLM", "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM")
ARCHITECTURES += ("Phi3ForCausalLM", "GPT2LMHeadModel", "GPTForCausalLM")
NOT_ON_SM100 = ("gemm_swiglu_plugin", "fp8_rowwise_gemm_plugin", "low_latency_gemm_plugin")


def install(folder: Path, *, version: str = VERSION, tensorrt: str = "10.14.1.48") -> dict[str, str]:
    """Write the program, a nvidia-smi and the packages it is of; return the environment that has them."""
    tools, packages = folder / "bin", folder / "packages"
    here = Path(__file__).parent
    _program(
        tools / "trtllm-build",
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(here)!r})\n"
        "from trtllm_build_double import main\nsys.exit(main())\n",
    )
    _program(
        tools / "nvidia-smi",
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(here)!r})\n"
        "from trtllm_build_double import nvidia_smi\nnvidia_smi(sys.argv[1:])\n",
    )
    for name, found in (("tensorrt_llm", version), ("tensorrt", tensorrt)):
        metadata = packages / f"{name}-{found}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {found}\n")
    path = f"{tools}:{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(packages), "TRTLLM_BUILD_VERSION": version}


def _version() -> str:
    return os.environ.get("TRTLLM_BUILD_VERSION", VERSION)


def nvidia_smi(arguments: list[str]) -> None:
    """Answer queries for what a GPU is, one line a GPU, and without any the CUDA version."""
    if not arguments:
        _say("Driver Version: 580.65   CUDA Version: 13.0")
        return
    answers = {
        "name": "NVIDIA double",
        "memory.total": "81559",
        "compute_cap": f"{_sm() // 10}.{_sm() % 10}",
        "driver_version": "580.65",
        "mig.mode.current": "Disabled",
    }
    fields = arguments[0].removeprefix("--query-gpu=").split(",")
    for _ in range(_gpus()):
        _say(", ".join(answers[field] for field in fields))


def read_calls(file: Path) -> list[dict[str, Any]]:
    """Return what was recorded; a line without its end is being written."""
    return [json.loads(line) for line in file.read_text().rpartition("\n")[0].splitlines()]


def main() -> int:
    """Be `trtllm-build`."""
    args = _parser().parse_args()
    fault = os.environ.get("TRTLLM_BUILD_FAULT")
    if os.environ.get("TRTLLM_BUILD_FAULTY", _role(args)) != _role(args):
        fault = os.environ.get("TRTLLM_BUILD_OTHER_FAULT")
    _record("begin", args)
    _say(f"[TensorRT-LLM] TensorRT LLM version: {_version()}")
    if os.environ.get("TRTLLM_BUILD_MEETS") and not _meet():
        return 9
    if fault == "hang":
        # A worker of its own, as the real one has; neither ends by itself or on a polite signal.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        worker = subprocess.Popen(
            [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
        )
        _record("worker", args, pid=worker.pid)
        time.sleep(600)
    try:
        config, ranks = _build(args)
    except (RuntimeError, AssertionError, NotImplementedError, KeyError) as error:
        _say(f"Traceback (most recent call last):\n{type(error).__name__}: {error}")
        return 1
    if fault == "exit":
        for line in range(40):
            _say(f"[TRT] [E] line {line}")
        _say("[TRT] [E] out of memory")
        return 3
    _spoil(config, fault)
    output = Path(args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=4)
    (output / "config.json").write_text(text[: len(text) // 2] if fault == "config" else text)
    for rank, size in enumerate(ranks):
        if fault == "rank" and rank == len(ranks) - 1:
            continue
        with (output / f"rank{rank}.engine").open("wb") as file:
            file.write(b"ftrt")
            file.truncate(size // 10 if fault == "engine" else size)
    Path(args.output_timing_cache).write_bytes(b"times")
    _record("end", args)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trtllm-build")
    for name, flag in FLAGS.items():
        spellings = [f"--{spelling}" for spelling in (name, *flag.aliases)]
        if flag.switch:
            parser.add_argument(*spellings, action="store_true", default=flag.default)
        else:
            parser.add_argument(
                *spellings, type=flag.kind, default=flag.default, choices=flag.choices or None, dest=name
            )
    return parser


def _build(args: argparse.Namespace) -> tuple[dict[str, Any], list[int]]:
    """Return the engine's config.json and the bytes of each rank's engine."""
    if args.gather_all_token_logits:
        args.gather_context_logits = args.gather_generation_logits = True
    if args.gather_context_logits and args.max_draft_len > 0:
        raise RuntimeError("Gather context logits is not supported with draft len > 0.")
    if args.multiple_profiles == "enable" and args.opt_num_tokens is not None:
        raise RuntimeError("multiple_profiles is enabled, while opt_num_tokens is set.")
    assert args.streamingllm == "disable", "StreamingLLM is no longer supported"
    for name in NOT_ON_SM100 if _sm() == 100 else ():
        if getattr(args, name) != "disable":
            raise NotImplementedError(f"{name}={getattr(args, name)} is not supported on SM 100.")
    if min(_gpus(), args.workers) < 1:
        raise RuntimeError("max_workers must be greater than 0")
    model, sizes = _checkpoint(Path(args.checkpoint_dir))
    if args.logits_dtype:
        model["logits_dtype"] = args.logits_dtype
    plugins = _plugins(args, model)
    _quantization(args, model, plugins)
    built = {
        "max_input_len": args.max_input_len,
        "max_seq_len": args.max_seq_len or model["max_position_embeddings"],
        "max_batch_size": args.max_batch_size,
        "max_beam_width": args.max_beam_width,
        "max_num_tokens": args.max_num_tokens,
        "opt_num_tokens": args.opt_num_tokens,
        "max_draft_len": args.max_draft_len,
        "speculative_decoding_mode": MODES[args.speculative_decoding_mode],
        "kv_cache_type": args.kv_cache_type.upper(),
        "gather_context_logits": args.gather_context_logits,
        "gather_generation_logits": args.gather_generation_logits,
        "plugin_config": plugins,
    }
    _lengths(built)
    return {"version": _version(), "pretrained_config": model, "build_config": built}, sizes


def _checkpoint(folder: Path) -> tuple[dict[str, Any], list[int]]:
    """Read a TensorRT-LLM checkpoint; a Hugging Face one is none."""
    config = json.loads((folder / "config.json").read_text())
    assert config["architecture"] in ARCHITECTURES, (
        f"Unsupported model architecture: {config['architecture']}"
    )
    for key in ("dtype", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert config[key], key
    allowed = {"quant_algo", "kv_cache_quant_algo", "group_size", "exclude_modules", "clamp_val"}
    unknown = config["quantization"].keys() - allowed
    assert not unknown, f"QuantConfig got unexpected keyword arguments {unknown}"
    mapping = config["mapping"]
    assert mapping["world_size"] == mapping["tp_size"] * mapping["pp_size"] * mapping["cp_size"]
    sizes = []
    for rank in range(mapping["world_size"]):
        with (folder / f"rank{rank}.safetensors").open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        assert all(name.startswith(("transformer.", "lm_head.")) for name in header), "not a rank's tensors"
        if config["quantization"]["quant_algo"] == "FP8":
            scales = [name for name in header if name.endswith(".qkv.activation_scaling_factor")]
            assert scales, "Required but not provided tensors: activation_scaling_factor"
        shared = header.get("lm_head.weight", {"data_offsets": [0, 0]})["data_offsets"]
        both = "lm_head.weight" in header and "transformer.vocab_embedding.weight" in header
        total = max(entry["data_offsets"][1] for entry in header.values())
        tied = config.get("tie_word_embeddings") and both
        sizes.append(total - (shared[1] - shared[0] if tied else 0))
    return config, sizes


def _plugins(args: argparse.Namespace, model: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"dtype": model["dtype"], "paged_kv_cache": None}
    for name, flag in FLAGS.items():
        if flag.choices == ("enable", "disable"):
            found[name] = getattr(args, name) == "enable"
        elif name.endswith("_plugin"):
            value = getattr(args, name)
            found[name] = {"disable": None, "auto": model["dtype"]}.get(value, value)
    found["tokens_per_block"] = args.tokens_per_block
    one_rank = model["mapping"]["tp_size"] == 1
    if one_rank or model["architecture"] not in ("LlamaForCausalLM", "Gemma2ForCausalLM"):
        found["reduce_fusion"] = False
    found["user_buffer"] = found["user_buffer"] and found["reduce_fusion"]
    if found["gemm_swiglu_plugin"] and not found["use_fused_mlp"]:
        raise RuntimeError("GemmSwiGLU plugin requires --use_fused_mlp flag")
    return found


def _quantization(args: argparse.Namespace, model: dict[str, Any], plugins: dict[str, Any]) -> None:
    """Switch attention kernels as quantisation allows them."""
    quantised = model["quantization"]["quant_algo"] == "FP8"
    cache = model["quantization"]["kv_cache_quant_algo"]
    if model["quantization"]["quant_algo"] == "FP8_PER_CHANNEL_PER_TOKEN" and 100 <= _sm() < 120:
        raise RuntimeError("Per-channel or per-token scaling is not supported on SM>=100.")
    if not plugins["context_fmha"]:
        plugins["use_fp8_context_fmha"] = plugins["use_paged_context_fmha"] = False
    elif not quantised or _sm() < 89:
        plugins["use_fp8_context_fmha"] = False
        if cache == "FP8":
            plugins["use_paged_context_fmha"] = False
    elif plugins["use_paged_context_fmha"]:
        plugins["use_fp8_context_fmha"] = cache == "FP8"
    if cache == "INT8":
        plugins["use_paged_context_fmha"] = False


def _lengths(built: dict[str, Any]) -> None:
    built["max_input_len"] = min(built["max_input_len"], built["max_seq_len"])
    built["max_num_tokens"] = min(built["max_num_tokens"], built["max_seq_len"] * built["max_batch_size"])
    built["max_num_tokens"] = max(built["max_num_tokens"], built["plugin_config"]["tokens_per_block"])
    if built["speculative_decoding_mode"] != 1:
        built["max_seq_len"] += built["max_draft_len"]
        drafted = built["max_batch_size"] * (built["max_draft_len"] + 1)
        built["max_num_tokens"] = max(built["max_num_tokens"], drafted)


def _spoil(config: dict[str, Any], fault: str | None) -> None:
    """Make an engine that is not what was asked for."""
    built = config["build_config"]
    if fault == "version":
        config["version"] = "1.1.0"
    if fault == "speculation":
        built["speculative_decoding_mode"], built["max_draft_len"] = 1, 0
    if fault == "paged":
        built["plugin_config"]["use_paged_context_fmha"] = False
    if fault == "logits":
        built["gather_generation_logits"] = not built["gather_generation_logits"]


def _sm() -> int:
    return int(os.environ.get("TRTLLM_BUILD_SM", "90"))


def _gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(visible.split(",")) if visible else int(os.environ.get("TRTLLM_BUILD_GPUS", "1"))


def _meet() -> bool:
    """Wait until runs of both roles have begun; return whether they have."""
    patience = time.monotonic() + 60
    while time.monotonic() < patience:
        calls = read_calls(Path(os.environ["TRTLLM_BUILD_CALLS"]))
        if {entry["role"] for entry in calls} == {"target", "draft"}:
            return True
        time.sleep(0.02)
    return False


def _role(args: argparse.Namespace) -> str:
    return "target" if args.speculative_decoding_mode else "draft"


def _record(event: str, args: argparse.Namespace, **more: Any) -> None:
    calls = os.environ.get("TRTLLM_BUILD_CALLS")
    if calls:
        entry = {
            "event": event,
            "role": _role(args),
            "time": time.monotonic(),
            "pid": os.getpid(),
            "argv": sys.argv[1:],
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "cwd": str(Path.cwd()),
            **more,
        }
        with open(calls, "a") as file:
            file.write(json.dumps(entry) + "\n")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _program(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
