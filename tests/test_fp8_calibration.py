"""Calibration layer by layer: the maxima of hooks on the whole model, resumed, refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fp8_checkpoints import TEXTS, change_tensors, hooked_maxima, load
from tiny_checkpoints import FAMILIES, make_model, save
from transformers import DynamicCache

from trtspec.build.checkpoint import open_checkpoint
from trtspec.build.convert.linears import find_linears
from trtspec.build.quantize.calibration import calibrate
from trtspec.build.quantize.layers import LayeredModel
from trtspec.build.quantize.texts import (
    CALIBRATION,
    HELD_OUT,
    Texts,
    check_lengths,
    read_texts,
    shipped_texts,
)
from trtspec.errors import BuildError

DENSE = [family for family in FAMILIES if family != "mixtral"]


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.fixture(params=DENSE)
def family_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save(make_model(request.param), tmp_path / "hf")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(make_model("llama31"), tmp_path / "hf")


def killed_after(layers: int) -> Any:
    def report(done: int, total: int) -> None:
        if done == layers:
            raise Killed

    return report


def test_the_maxima_are_those_of_hooks_on_the_whole_model(family_folder: Path) -> None:
    assert calibrate(open_checkpoint(family_folder), TEXTS).inputs == hooked_maxima(
        load(family_folder), TEXTS
    )


def test_half_precision_is_calibrated_in_half_precision(tmp_path: Path) -> None:
    folder = save(make_model("qwen3", torch.bfloat16), tmp_path / "hf")
    found = calibrate(open_checkpoint(folder), TEXTS).inputs
    assert found == hooked_maxima(load(folder, torch.bfloat16), TEXTS)
    assert found != hooked_maxima(load(folder), TEXTS)


def test_logits_are_those_of_the_whole_model(family_folder: Path) -> None:
    model = LayeredModel(open_checkpoint(family_folder), torch.float32)
    hidden = model.embed(TEXTS)
    for index in range(model.layers):
        with model.layer(index) as (_, run):
            hidden = run(hidden)
    model.load_head()
    whole = load(family_folder)
    for text, states in zip(TEXTS, hidden, strict=True):
        with torch.inference_mode():
            expected = whole(torch.tensor([text]), use_cache=False).logits[0]
        assert torch.equal(model.logits(states[0]), expected)


def test_only_one_layer_is_in_memory_at_a_time(folder: Path) -> None:
    model = LayeredModel(open_checkpoint(folder), torch.float32)
    hidden = model.embed(TEXTS)
    for index in range(model.layers):
        with model.layer(index) as (module, run):
            hidden = run(hidden)
            assert not any(parameter.is_meta for parameter in module.parameters())
        assert all(parameter.is_meta for parameter in module.parameters())


def test_the_cache_is_watched_after_the_rotation_of_keys(folder: Path) -> None:
    model, largest = load(folder), {}
    for text in TEXTS:
        cache = DynamicCache()
        with torch.inference_mode():
            model(torch.tensor([text]), cache=cache)
        for index, layer in enumerate(cache.layers):
            name = f"model.layers.{index}.self_attn"
            key, value = largest.get(name, (0.0, 0.0))
            largest[name] = (
                max(key, float(layer.keys.abs().amax())),
                max(value, float(layer.values.abs().amax())),
            )
    assert calibrate(open_checkpoint(folder), TEXTS, kv_cache=True).cache == largest


def test_a_killed_calibration_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    checkpoint, state = open_checkpoint(folder), tmp_path / "state"
    with pytest.raises(Killed):
        calibrate(checkpoint, TEXTS, kv_cache=True, state=state, report=killed_after(2))
    seen: list[int] = []
    again = calibrate(
        checkpoint, TEXTS, kv_cache=True, state=state, report=lambda done, total: seen.append(done)
    )
    assert seen == [3, 4]
    assert again == calibrate(checkpoint, TEXTS, kv_cache=True)
    assert not state.exists()


@pytest.mark.parametrize("changed", ["weights", "texts", "dtype", "cache"])
def test_a_half_finished_calibration_of_something_else_is_refused(
    folder: Path, tmp_path: Path, changed: str
) -> None:
    state = tmp_path / "state"
    with pytest.raises(Killed):
        calibrate(open_checkpoint(folder), TEXTS, state=state, report=killed_after(1))
    if changed == "weights":
        change_tensors(folder, model__norm__weight=torch.full((32,), 0.5))
    with pytest.raises(BuildError, match=r"half-finished calibration of another checkpoint, other texts or"):
        calibrate(
            open_checkpoint(folder),
            TEXTS[:2] if changed == "texts" else TEXTS,
            dtype=torch.bfloat16 if changed == "dtype" else None,
            kv_cache=changed == "cache",
            state=state,
        )


def test_a_copied_checkpoint_goes_on_with_the_calibration(folder: Path, tmp_path: Path) -> None:
    state, moved = tmp_path / "state", tmp_path / "moved"
    with pytest.raises(Killed):
        calibrate(open_checkpoint(folder), TEXTS, state=state, report=killed_after(3))
    shutil.copytree(folder, moved)
    seen: list[int] = []
    calibrate(open_checkpoint(moved), TEXTS, state=state, report=lambda done, total: seen.append(done))
    assert seen == [4]


def test_a_damaged_state_is_named(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with pytest.raises(Killed):
        calibrate(open_checkpoint(folder), TEXTS, state=state, report=killed_after(1))
    (state / "calibration.safetensors").write_bytes(b"half a file")
    with pytest.raises(BuildError, match=r"cannot be read .*; remove .*state to calibrate from the start"):
        calibrate(open_checkpoint(folder), TEXTS, state=state)


def test_a_layer_that_overflows_is_named(folder: Path) -> None:
    change_tensors(folder, model__layers__2__self_attn__o_proj__weight=torch.full((32, 64), 3e38))
    with pytest.raises(BuildError, match=r"layer 2 yields NaN or Inf in float32"):
        calibrate(open_checkpoint(folder), TEXTS)


def test_a_missing_gpu_is_a_clear_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BuildError, match="--device cuda: torch finds no CUDA device"):
        calibrate(open_checkpoint(folder), TEXTS, device="cuda")


def test_experts_are_refused(tmp_path: Path) -> None:
    folder = save(make_model("mixtral"), tmp_path / "hf")
    with pytest.raises(BuildError, match=r"MixtralForCausalLM has experts, which are not quantised"):
        find_linears(open_checkpoint(folder))


# Texts


@pytest.mark.parametrize("texts", [[], [[], []]])
def test_no_texts_are_refused(folder: Path, texts: list[list[int]]) -> None:
    with pytest.raises(BuildError, match="no texts; give some"):
        calibrate(open_checkpoint(folder), texts)


@pytest.mark.parametrize("content", ["", "\n  \n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "texts.txt").write_text(content)
    with pytest.raises(BuildError, match=r"texts\.txt: found no prompts, expected one a line"):
        read_texts(tmp_path / "texts.txt")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"texts\.txt: cannot be read"):
        read_texts(tmp_path / "texts.txt")


def test_lines_of_json_are_strings_or_objects_with_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('"one"\n\n{"text": "two\\nlines", "id": 3}\n{"prompt": "four"}\n')
    assert read_texts(tmp_path / "a.jsonl").texts == ("one", "two\nlines", "four")


@pytest.mark.parametrize(
    "line", ["{", "3", '{"question": "?"}', '""', '"  "', pytest.param("[" * 100_000, id="nested")]
)
def test_another_line_of_json_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'"one"\n{line}\n')
    with pytest.raises(BuildError, match=r"a\.jsonl:2: "):
        read_texts(tmp_path / "a.jsonl")


def test_texts_are_read_as_every_other_file_of_prompts(tmp_path: Path) -> None:
    for name, content in (("a.JSONL", '{"text": "hi"}'), ("a.txt", "\ufeffhi"), ("a.jsonl", '\ufeff"hi"')):
        (tmp_path / name).write_text(content, "utf-8")
        assert read_texts(tmp_path / name).texts == ("hi",)


def test_the_hash_is_of_the_texts_whatever_file_holds_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "a.jsonl").write_text('"one"\n{"text": "two"}')
    assert read_texts(tmp_path / "a.txt").sha256 == read_texts(tmp_path / "a.jsonl").sha256
    assert Texts("", ("one", "two")).sha256 != Texts("", ("one\ntwo",)).sha256


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", 'one\r\n\n  two ß\u2028\n{"text": 1}'),
        ("a.jsonl", '"one"\n\n{"text": "  two ß\u2028", "id": 3}\n{"prompt": "{\\"text\\": 1}"}\n'),
    ],
)
def test_the_hashes_that_records_hold_stay_those_of_their_texts(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_bytes(content.encode())
    assert read_texts(tmp_path / name).sha256[:16] == "de73c327ec10d974"
    assert shipped_texts(CALIBRATION).sha256[:16] == "5f86f279584493da"
    assert shipped_texts(HELD_OUT).sha256[:16] == "e56c7d926e4e5563"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1], [1] * 129], "text 2 has 129 tokens, .* reads at most 128; cut it"),
        ([[]], "text 1 has no tokens"),
        ([[1, 101]], "text 1 has token 101, the vocabulary of .* ends at 100; the tokenizer is of another"),
    ],
)
def test_texts_that_the_model_cannot_read_are_refused(
    folder: Path, ids: list[list[int]], message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        check_lengths(ids, open_checkpoint(folder), "texts")


def test_the_texts_that_ship_are_many_and_none_is_in_both_sets() -> None:
    calibration, held_out = shipped_texts(CALIBRATION), shipped_texts(HELD_OUT)
    assert (len(calibration.texts), len(held_out.texts)) == (24, 16)
    assert not set(calibration.texts) & set(held_out.texts)
