"""What the fingerprint of a pair of the cpu runtime bears, and what it sees.

    python benchmarks/fingerprint.py work/pair

Two tables, each against the fingerprint in the pair's manifest: the target under kernels of other
processors (PyTorch's and oneDNN's instruction sets), which have to pass; and with something changed in
it, which should not. Errors are in units of what is tolerated where they are largest.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import torch
from safetensors.torch import load_file, save_file

from trtspec.choices import Dtype
from trtspec.client.verify.fingerprint import judge_probe
from trtspec.dtype_noise import served_dtype
from trtspec.engines.fingerprint import fingerprint_of
from trtspec.engines.manifest import FingerprintManifest
from trtspec.engines.pair import EnginePair, open_pair

KERNELS: dict[str, dict[str, str]] = {
    "this host": {},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "no AVX": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
}


def judge(built: FingerprintManifest, found: FingerprintManifest) -> str:
    """Return the verdicts of the target's probes, and the largest error before tokens part."""
    pairs = list(zip(built.target, found.target, strict=True))
    verdicts = [judge_probe("", was, now.ids, now.log_probs).verdict for was, now in pairs]
    errors = []
    for was, now in pairs:
        rows = zip(was.ids, now.ids, was.log_probs, now.log_probs, was.tolerances, strict=True)
        for before, after, expected, served, tolerance in rows:
            errors.append(abs(served - expected) / tolerance)
            if before != after:
                break
    return f"{', '.join(verdicts):<24} {max(errors):8.2f}"


def edited(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A change of a JSON file of an engine."""

    def edit(folder: Path) -> None:
        document = json.loads((folder / name).read_text("utf-8"))
        change(document)
        (folder / name).write_text(json.dumps(document), "utf-8")

    return edit


def _scale_row(folder: Path, factor: float) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    name = sorted(name for name in weights if name.endswith("mlp.down_proj.weight"))[0]
    weights[name] = weights[name].clone()
    weights[name][0] = (weights[name][0].float() * factor).to(weights[name].dtype)
    save_file(weights, file, metadata={"format": "pt"})


CHANGES: Mapping[str, Callable[[Path], None]] = {
    "RoPE's base, + 0.01 %": edited("config.json", lambda c: c["rope_parameters"].update(rope_theta=10001.0)),
    "RoPE's base, + 1 %": edited("config.json", lambda c: c["rope_parameters"].update(rope_theta=10100.0)),
    "epsilon of norms, 1e-6": edited("config.json", lambda c: c.update(rms_norm_eps=1e-6)),
    "a row of a matrix, + 1 %": lambda folder: _scale_row(folder, 1.01),
    "a row of a matrix, × 2": lambda folder: _scale_row(folder, 2.0),
}


def fingerprint(pair: EnginePair, target: Path) -> FingerprintManifest:
    settings, quantization = pair.manifest.target.settings, pair.manifest.target.quantization
    dtypes: dict[str, Dtype] = {
        "target": served_dtype(settings.dtype, quantized=quantization is not None),
    }
    return fingerprint_of(target, None, pair.tokenizer, dtypes)


@click.command()
@click.argument("folder", metavar="PAIR", type=click.Path(exists=True, path_type=Path))
@click.option("--print-fingerprint", is_flag=True, hidden=True, help="What each process under test does.")
def main(folder: Path, print_fingerprint: bool) -> None:
    torch.set_num_threads(1)
    pair = open_pair(folder)
    if print_fingerprint:
        click.echo(fingerprint(pair, pair.target).model_dump_json())
        return
    built = pair.manifest.fingerprint
    if built is None:
        raise click.UsageError(f"{folder} has no fingerprint")
    for name, environment in KERNELS.items():
        command = [sys.executable, __file__, str(folder), "--print-fingerprint"]
        said = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, check=True)
        print(f"{name:<26}{judge(built, FingerprintManifest.model_validate_json(said.stdout))}", flush=True)
    for name, change in CHANGES.items():
        with tempfile.TemporaryDirectory() as scratch:
            target = Path(scratch, "target")
            shutil.copytree(pair.target, target, copy_function=shutil.copyfile)
            change(target)
            print(f"{name:<26}{judge(built, fingerprint(pair, target))}", flush=True)


if __name__ == "__main__":
    main()
