"""Two checkpoints in, an engine pair out; or a clear line and nothing written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from trtspec.build.options import BuildOptions
from trtspec.build.pair import build
from trtspec.build.quantize.pair_quantizer import PairQuantization
from trtspec.build.runtimes.tensorrt.options import TensorrtOptions
from trtspec.choices import Runtime
from trtspec.engines.cpu.engine import Engine
from trtspec.engines.cpu.request import Request
from trtspec.engines.pair import EnginePair, open_pair
from trtspec.errors import (
    BuildError,
    CheckpointError,
    EngineError,
    OutputError,
    PairError,
    RepositoryError,
)
from trtspec.triton_repo.repository import write_repository

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pair_folder(demo_pair: Path, tmp_path: Path) -> Path:
    """A copy of the demo pair's checkpoints, to be damaged."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(demo_pair, folder)
    return folder


def build_in(folder: Path, options: BuildOptions | None = None) -> EnginePair:
    return build(folder / "target", folder / "draft", folder / "pair", options, report=lambda line: None)


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"target", "draft", "README.md", "LICENSE-PYTHON.txt"}


def test_an_engine_holds_the_checkpoints_weights(built_pair: EnginePair, demo_pair: Path) -> None:
    for name in ("target", "draft"):
        built = load_file(built_pair.path / name / "model.safetensors")
        source = load_file(demo_pair / name / "model.safetensors")
        assert built.keys() == source.keys()
        assert all(built[key].equal(source[key]) for key in source)


def test_special_tokens_are_those_of_transformers(built_pair: EnginePair, demo_pair: Path) -> None:
    written = json.loads((built_pair.tokenizer / "special_tokens_map.json").read_text())
    assert written == AutoTokenizer.from_pretrained(demo_pair / "target").special_tokens_map
    assert written["bos_token"] == "<s>"


def test_the_manifest_says_what_the_pair_is(built_pair: EnginePair) -> None:
    manifest = built_pair.manifest
    assert manifest.runtime == "cpu"
    assert manifest.target.settings.vocab_size == manifest.draft.settings.vocab_size == 4096
    assert manifest.eos_token_ids == (2,)
    assert (manifest.target.parameters, manifest.draft.parameters) == (12_853_504, 721_280)
    assert manifest.target.settings.max_seq_len == 2048
    assert manifest.target.files.keys() == {path.name for path in built_pair.target.iterdir()}
    digest = subprocess.run(
        ["sha256sum", built_pair.target / "model.safetensors"], capture_output=True, text=True, check=True
    )
    assert manifest.target.files["model.safetensors"] == digest.stdout.split()[0]


def test_the_same_inputs_give_the_same_bytes(built_pair: EnginePair, pair_folder: Path) -> None:
    again = build_in(pair_folder)
    files = {path.relative_to(again.path) for path in again.path.rglob("*") if path.is_file()}
    assert files == {p.relative_to(built_pair.path) for p in built_pair.path.rglob("*") if p.is_file()}
    assert all((again.path / file).read_bytes() == (built_pair.path / file).read_bytes() for file in files)


@pytest.mark.parametrize(
    ("damage", "options", "words"),
    [
        ("model.layers.0.self_attn.gate.weight", None, "1 tensors the architecture has no place for"),
        (None, BuildOptions(max_batch_size=10**7), "engine.json: 20000000 slots of 2048 tokens"),
    ],
)
def test_an_engine_that_cannot_run_is_named_by_the_checkpoint_that_was_given(
    pair_folder: Path, damage: str | None, options: BuildOptions | None, words: str
) -> None:
    if damage:
        file = pair_folder / "target" / "model.safetensors"
        save_file(load_file(file) | {damage: torch.zeros(2, 2)}, file)
    with pytest.raises(EngineError) as refused:
        build_in(pair_folder, options)
    assert str(refused.value).startswith(f"{pair_folder / 'target'}: the target cannot be run as built")
    assert words in str(refused.value)
    assert os.environ["TRTSPEC_CACHE"] not in str(refused.value)


def test_every_user_may_read_a_pair(built_pair: EnginePair) -> None:
    modes = {path.stat().st_mode & 0o777 for path in built_pair.path.rglob("*")}
    assert modes == {0o444, 0o644, 0o755}


def test_saving_over_the_source_does_not_change_the_engine(pair_folder: Path) -> None:
    pair = build_in(pair_folder)
    before = (pair.target / "model.safetensors").read_bytes()
    with (pair_folder / "target" / "model.safetensors").open("r+b") as file:
        file.write(b"\0" * 100)
    assert (pair.target / "model.safetensors").read_bytes() == before


def test_all_ends_of_text_that_the_files_name_end_an_answer(pair_folder: Path) -> None:
    edit(pair_folder / "target" / "generation_config.json", eos_token_id=[7, 9])
    pair = build_in(pair_folder)
    assert pair.manifest.eos_token_ids == (7, 9, 2)
    assert "eos.sources" in pair.manifest.repairs
    for engine in (pair.target, pair.draft):
        assert json.loads((engine / "generation_config.json").read_text())["eos_token_id"] == [7, 9, 2]


def test_the_narrower_model_gets_the_wider_ones_ids_and_never_chooses_them(pair_folder: Path) -> None:
    narrow = pair_folder / "draft"
    weights = load_file(narrow / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:4090].clone()
    save_file(weights, narrow / "model.safetensors")
    edit(narrow / "config.json", vocab_size=4090)
    drop_last_ids(pair_folder, 4090)
    pair = build_in(pair_folder)
    assert "vocab.width" in pair.manifest.repairs
    request = Request(input_ids=[5, 6, 7], max_new_tokens=4, return_generation_logits=True)
    (chunk,) = Engine(pair.draft).generate(request)
    assert chunk.logits is not None
    assert chunk.logits.shape == (4, 4096)
    assert (chunk.logits[:, 4090:] == -np.inf).all()
    assert np.isfinite(chunk.logits[:, :4090]).all()


@pytest.mark.parametrize("runtime", ["cpu", "tensorrt", "pytorch"])
def test_a_config_that_miscounts_the_vocabulary_is_built_by_its_weights(
    pair_folder: Path, runtime: Runtime
) -> None:
    for name, size in (("target", 4097), ("draft", 4000)):
        file = pair_folder / name / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"vocab_size": size}))
    options = BuildOptions(runtime=runtime, tensorrt=TensorrtOptions(compile="later"))
    pair = build_in(pair_folder, options)
    assert "vocab.config" in pair.manifest.repairs
    for folder in (pair.target, pair.draft):
        assert json.loads((folder / "config.json").read_text())["vocab_size"] == 4096


def drop_last_ids(folder: Path, size: int) -> None:
    """Take the last ids out of both tokenizers, so that the wider model only has padding there."""
    for name in ("target", "draft"):
        file = folder / name / "tokenizer.json"
        tokenizer = json.loads(file.read_text())
        model = tokenizer["model"]
        model["vocab"] = {word: i for word, i in model["vocab"].items() if i < size}
        model["merges"] = model["merges"][: size - 3 - 256]
        file.write_text(json.dumps(tokenizer))


def test_no_repository_is_made_of_a_pair_that_is_not_compiled(pair_folder: Path) -> None:
    later = TensorrtOptions(compile="later")
    pair = build_in(pair_folder, BuildOptions(runtime="tensorrt", dtype="float16", tensorrt=later))
    with pytest.raises(RepositoryError, match=r"not compiled; compile them .* `trtspec adopt`"):
        write_repository(pair, pair_folder / "repo")


def truncate(folder: Path) -> None:
    file = folder / "target" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def drop_shard(folder: Path) -> None:
    target = folder / "target"
    names = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))


def pickle_only(folder: Path) -> None:
    (folder / "draft" / "model.safetensors").rename(folder / "draft" / "pytorch_model.bin")


def not_a_number(folder: Path) -> None:
    file = folder / "draft" / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, file)


def unknown_activation(folder: Path) -> None:
    """transformers reads config.json to find the tokenizer's class."""
    file = folder / "target" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_act": None}))


def other_tokenizer(folder: Path) -> None:
    file = folder / "draft" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    words = [word for word, i in vocab.items() if i in (300, 301)]
    vocab[words[0]], vocab[words[1]] = vocab[words[1]], vocab[words[0]]
    file.write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda folder: shutil.rmtree(folder / "target"), CheckpointError, "target: not a folder"),
        (
            lambda folder: (folder / "target" / "config.json").unlink(),
            CheckpointError,
            "config.json: missing",
        ),
        (truncate, CheckpointError, "truncated"),
        (drop_shard, CheckpointError, "1 shard.* missing"),
        (pickle_only, CheckpointError, "draft: pickled"),
        (not_a_number, CheckpointError, r"'model\.norm\.weight' holds NaN or Inf"),
        (unknown_activation, CheckpointError, r"no tokenizer that can be used \(.*'hidden_act'"),
        (other_tokenizer, PairError, "different text to the two models: 2"),
        (lambda folder: (folder / "pair").mkdir(), OutputError, "pair: exists already"),
    ],
)
def test_what_cannot_be_built_is_refused_and_nothing_is_written(
    pair_folder: Path, damage, error, message
) -> None:
    damage(pair_folder)
    before = leftovers(pair_folder)
    with pytest.raises(error, match=message):
        build_in(pair_folder)
    assert leftovers(pair_folder) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BuildOptions(max_seq_len=4096), "max_seq_len is 4096, the target's context is 2048"),
        (BuildOptions(max_seq_len=0), "max_seq_len is 0"),
        (BuildOptions(max_draft_len=0), "max_draft_len is 0"),
        (
            BuildOptions(max_draft_len=64, max_seq_len=64),
            "max_draft_len is 64, sequences have no more than 64",
        ),
        (BuildOptions(max_batch_size=0), "max_batch_size is 0"),
        (BuildOptions(dtype="float16"), "float32 or bfloat16, not float16"),
        (BuildOptions(tp=2), "--tp and --pp are for --runtime tensorrt and pytorch"),
        (
            BuildOptions(runtime="tensorrt", quantization=PairQuantization(target="fp8", calibrate="none")),
            "a TensorRT engine has them fixed when it is built",
        ),
        (BuildOptions(runtime="tensorrt", tp=3), "--tp 3"),
    ],
)
def test_options_out_of_range_are_refused(pair_folder: Path, options: BuildOptions, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        build_in(pair_folder, options)
    assert not leftovers(pair_folder)


def test_output_inside_trtspec_is_refused(pair_folder: Path) -> None:
    import trtspec.build

    output = Path(trtspec.build.__path__[0]) / "pair"
    with pytest.raises(OutputError, match="lies inside trtspec"):
        build(pair_folder / "target", pair_folder / "draft", output)


def test_an_interrupted_build_leaves_nothing(demo_pair: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trtspec", "build", demo_pair / "target", demo_pair / "draft"]
    for name in ("first", "second", "third"):  # again where the build was done before the signal came
        folder, store = tmp_path / name, tmp_path / f"store of the {name}"
        folder.mkdir()
        process = subprocess.Popen(
            [*command, "--output", folder / "pair", "--cache", store], stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        while not process.stderr.readline().startswith("target: ") and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        if process.returncode != 0:
            break
    assert process.returncode == 130
    assert stderr.endswith("trtspec: interrupted\n")
    assert not list(folder.iterdir())


def test_a_repository_is_told_from_a_pair_that_is_not_whole(built_pair: EnginePair, tmp_path: Path) -> None:
    repository = write_repository(built_pair, tmp_path / "repository")
    with pytest.raises(
        EngineError, match="this is a Triton repository, expected an engine pair; give the pair"
    ):
        open_pair(repository)


def test_a_folder_that_is_no_whole_pair_is_refused(built_pair: EnginePair, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no such folder"):
        open_pair(tmp_path / "nothing")
    with pytest.raises(EngineError, match=r"no trtspec\.json"):
        open_pair(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(built_pair.path, copy)
    (copy / "draft" / "config.json").unlink()
    with pytest.raises(EngineError, match=r"1 files of the manifest are missing, first draft/config\.json"):
        open_pair(copy)
    (copy / "trtspec.json").write_text("{")
    with pytest.raises(EngineError, match="not JSON"):
        open_pair(copy)
    edit_manifest = json.loads((built_pair.path / "trtspec.json").read_text()) | {"surprise": 1}
    (copy / "trtspec.json").write_text(json.dumps(edit_manifest))
    with pytest.raises(EngineError, match="first surprise: Extra inputs"):
        open_pair(copy)


@pytest.fixture
def run(typed: Run) -> Run:
    """Run `trtspec build` in this process; exit code, stdout, stderr."""
    return partial(typed, "build")


def test_the_command_builds_and_prints_the_manifest(
    pair_folder: Path, built_pair: EnginePair, run: Run
) -> None:
    # built_pair: by then kernels are compiled, which is told on stderr.
    output = pair_folder / "pair"
    code, out, err = run(pair_folder / "target", pair_folder / "draft", "--output", output, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((output / "trtspec.json").read_text())


def test_the_command_says_in_one_line_what_is_wrong(pair_folder: Path, run: Run) -> None:
    code, out, err = run(pair_folder, pair_folder, "--output", pair_folder / "pair")
    assert (code, out) == (1, "")
    assert err.startswith("trtspec: ")
    assert err.count("\n") == 1


def test_the_command_needs_an_output(pair_folder: Path, run: Run) -> None:
    code, _, err = run(pair_folder / "target", pair_folder / "draft")
    assert code == 2
    assert "--output" in err


@pytest.mark.parametrize("option", ["--max-seq-len", "--max-batch-size", "--max-draft-len", "--tp"])
def test_the_command_takes_no_zero_where_none_can_be(pair_folder: Path, run: Run, option: str) -> None:
    folders = pair_folder / "target", pair_folder / "draft"
    code, out, err = run(*folders, "--output", pair_folder / "pair", option, 0)
    assert (code, out) == (2, "")
    assert option in err


def test_disk_full_is_a_clear_line(demo_pair: Path, tmp_path: Path) -> None:
    """Files larger than the limit of the process cannot be written, as on a full disk."""
    command = [sys.executable, "-m", "trtspec", "build", demo_pair / "target", demo_pair / "draft"]
    script = f"ulimit -f 1000; trap '' XFSZ; exec {' '.join(map(str, command))} --output {tmp_path / 'pair'}"
    found = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"}
    )
    assert found.returncode == 1
    assert "File too large while" in found.stderr
    assert "Traceback" not in found.stderr
    assert not list(tmp_path.iterdir())
