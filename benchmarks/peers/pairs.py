"""The pairs that are compared, in the form each peer wants, and the prompts."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
from safetensors import safe_open
from tokenizers import Tokenizer

ROLES = ("target", "draft")
PROMPT_TOKENS = 64
# A little into a file, past its licence and imports.
SKIPPED_CHARACTERS = 1000
MAX_SEQ_LEN, MAX_DRAFT_LEN = 512, 16
# Peers that have to stop at some token are told this one, the padding, which no model here says.
NEVER = 0

_DEMO = Path(str(files("trtspec") / "demo_pair"))


@dataclass(frozen=True)
class Setting:
    """The Hugging Face checkpoints target/ and draft/, where to write, and the Python that has the peers."""

    checkpoints: Path
    work: Path
    peers_python: str


def prepare_checkpoints(pair: str, work: Path) -> Path:
    """Return the folder of Hugging Face checkpoints, target/ and draft/, of `demo` or `large`."""
    if pair == "demo":
        return _DEMO
    from large_pair import write_large_pair

    return _once(work / "checkpoints", lambda folder: write_large_pair(folder, _DEMO / "target"))


def as_it_is(at: Setting, dtype: str) -> Path:
    """Return the checkpoints' folder."""
    return at.checkpoints


def prepare_engines(at: Setting, dtype: str) -> Path:
    """Return a folder of our engines for one answer at a time, as `trtspec build` lays them out."""

    def write(folder: Path) -> None:
        for role in ROLES:
            shutil.copytree(at.checkpoints / role, folder / role)
            sizes = {"max_seq_len": MAX_SEQ_LEN, "max_batch_size": 1, "max_draft_len": MAX_DRAFT_LEN}
            (folder / role / "engine.json").write_text(json.dumps({"dtype": dtype, **sizes}))

    return _once(at.work / f"trtspec-{dtype}", write)


def prepare_repository(at: Setting, dtype: str) -> Path:
    """Return a model repository of the pair, for one answer at a time; anew, since it holds code of ours."""
    from trtspec.build.options import BuildOptions
    from trtspec.build.pair import build
    from trtspec.triton_repo.repository import write_repository

    def write(folder: Path) -> None:
        options = BuildOptions(
            dtype=dtype, max_seq_len=MAX_SEQ_LEN, max_batch_size=1, max_draft_len=MAX_DRAFT_LEN
        )
        target, draft = (at.checkpoints / role for role in ROLES)
        pair = build(target, draft, folder / "pair", options, cache="none", report=lambda line: None)
        write_repository(pair, folder / "repository")

    shutil.rmtree(at.work / "served", ignore_errors=True)
    return _once(at.work / "served", write) / "repository"


def prepare_onnx(at: Setting, dtype: str) -> Path:
    """Return a float32 export by onnxruntime-genai's model builder, with a genai_config.json for the pair."""

    def write(folder: Path) -> None:
        for role in ROLES:
            source, output = str(at.checkpoints / role), str(folder / role)
            builder = [at.peers_python, "-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu"]
            _call([*builder, "-i", source, "-o", output, "-c", str(folder / "cache")])
        configs = {role: json.loads((folder / role / "genai_config.json").read_text()) for role in ROLES}
        for config in configs.values():
            config["model"]["eos_token_id"] = NEVER
            config["model"]["decoder"]["session_options"] |= {
                "intra_op_num_threads": 1,
                "inter_op_num_threads": 1,
            }
        (folder / "target" / "genai_config.json").write_text(json.dumps(configs["target"]))
        for role, config in configs.items():
            config["model"]["decoder"]["filename"] = f"{role}/model.onnx"
        configs["target"]["model"]["draft"] = configs["draft"]["model"]["decoder"]
        (folder / "genai_config.json").write_text(json.dumps(configs["target"]))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / "target" / name, folder)

    return _once(at.work / "onnxruntime-genai", write)


def prepare_openvino(at: Setting, dtype: str) -> Path:
    """Return a float32 export by optimum-intel."""

    def write(folder: Path) -> None:
        for role in ROLES:
            exporter = [str(Path(at.peers_python).with_name("optimum-cli")), "export", "openvino"]
            kind = ["--task", "text-generation-with-past", "--weight-format", "fp32"]
            _call([*exporter, *kind, "--model", str(at.checkpoints / role), str(folder / role)])

    return _once(at.work / "openvino-genai", write)


def prompts(count: int) -> list[list[int]]:
    """Return pieces of the files that the demo pair's training left out, of one length."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from train_demo_pair import corpus

    tokenizer: Any = Tokenizer.from_file(str(_DEMO / "target" / "tokenizer.json"))
    _, held_out = corpus()
    pieces = [tokenizer.encode(text[SKIPPED_CHARACTERS:], add_special_tokens=False).ids for text in held_out]
    long_enough = [ids[:PROMPT_TOKENS] for ids in pieces if len(ids) >= PROMPT_TOKENS]
    if len(long_enough) < count:
        raise click.UsageError(f"{len(long_enough)} prompts of {PROMPT_TOKENS} tokens, {count} asked for")
    return long_enough[:count]


def weights_per_pass(checkpoint: Path) -> int:
    """Return how many weights one pass over a token reads: all but an embedding that is not the head too."""
    with safe_open(checkpoint / "model.safetensors", framework="np") as file:
        sizes = {name: math.prod(file.get_slice(name).get_shape()) for name in list(file.keys())}
    if "lm_head.weight" in sizes:
        sizes["model.embed_tokens.weight"] = 0
    return sum(sizes.values())


def _once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return the folder, written now unless an earlier run has."""
    if not folder.is_dir():
        click.echo(f"{folder}: preparing", err=True)
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        partial.rename(folder)
    return folder


def _call(command: list[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=False
    )
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
