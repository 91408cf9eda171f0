"""Architectures that run through transformers' own modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cpu_checkpoints import SIZES, copy_checkpoint, greedy, reference, reference_logits, write_random
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    MistralConfig,
    Phi3Config,
)

from trtspec.engines.cpu.engine import Engine
from trtspec.engines.cpu.errors import EngineLoadError
from trtspec.engines.cpu.request import Request

WINDOW = 16
SIZES_4 = SIZES | {"num_hidden_layers": 4}

CONFIGS: dict[str, Any] = {
    "gemma": GemmaConfig(**SIZES, head_dim=16),
    "gemma2": Gemma2Config(**SIZES_4, head_dim=16, sliding_window=WINDOW, query_pre_attn_scalar=16),
    "gemma3": Gemma3TextConfig(**SIZES_4, head_dim=16, sliding_window=WINDOW, query_pre_attn_scalar=16),
    "phi3": Phi3Config(**SIZES),
    "phi3, window": Phi3Config(**SIZES, sliding_window=WINDOW),
    "gpt2": GPT2Config(
        vocab_size=61, n_embd=48, n_layer=2, n_head=4, n_positions=128, bos_token_id=None, eos_token_id=None
    ),
    "mistral, window": MistralConfig(**SIZES, sliding_window=WINDOW),
}

SHORT = [7, 21, 3, 44, 9]
LONG = [(5 * t * t + t) % 61 for t in range(40)]


@pytest.fixture(params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("model"), CONFIGS[request.param])


def answer(engine: Engine, request: Request) -> list[int]:
    return [token for chunk in engine.generate(request) for token in chunk.ids]


def test_it_answers_like_transformers_for_every_draft_batch_and_cache_state(folder: Path) -> None:
    """One test for one model: loading it is most of the time."""
    engine, model = Engine(folder), reference(folder)
    for prompt in (SHORT, LONG):
        expected = greedy(model, prompt, 24)
        request = Request(input_ids=prompt, max_new_tokens=24, return_log_probs=True)
        (chunk,) = engine.generate(request)
        assert chunk.ids == expected
        rows = reference_logits(model, prompt + expected)[len(prompt) - 1 : -1]
        log_probs = rows.log_softmax(-1)[range(24), expected].tolist()
        assert chunk.log_probs == pytest.approx(log_probs, abs=1e-4)
        for wrong in (0, 2, 3):
            assert in_rounds(engine, prompt, expected, wrong) == expected
    first = engine.submit(Request(input_ids=[*LONG, 1], max_new_tokens=6))
    second = engine.submit(Request(input_ids=[*LONG[:20], 2], max_new_tokens=6))
    reused = engine.reused_rows
    while engine.sequences:
        engine.step()
    assert engine.reused_rows == reused + len(LONG) + 20
    assert first.tokens[-6:] == greedy(model, [*LONG, 1], 6)
    assert second.tokens[-6:] == greedy(model, [*LONG[:20], 2], 6)


def in_rounds(engine: Engine, prompt: list[int], known: list[int], wrong: int) -> list[int]:
    """The answer in rounds of four draft tokens, of which the one at `wrong` is a lie."""
    done: list[int] = []
    while len(done) < len(known):
        draft = known[len(done) : len(done) + 4][: len(known) - len(done) - 1]
        draft = [(token + (index == wrong)) % 61 for index, token in enumerate(draft)]
        request = Request(input_ids=prompt + done, draft_ids=draft, max_new_tokens=len(draft) + 1)
        done += answer(engine, request)
    return done


def test_a_rope_that_changes_with_the_length_is_refused_beyond_its_context(tmp_path: Path) -> None:
    factors = {"long_factor": [2.0] * 6, "short_factor": [1.0] * 6}
    rope = {"rope_type": "longrope", "rope_theta": 1000.0, **factors}
    config = Phi3Config(**SIZES, rope_parameters=rope, original_max_position_embeddings=32)
    folder = write_random(tmp_path / "long", config, max_seq_len=33)
    with pytest.raises(EngineLoadError, match=r"'longrope' changes its frequencies beyond 32 positions"):
        Engine(folder)
    within = copy_checkpoint(folder, tmp_path / "within", max_seq_len=32)
    assert answer(Engine(within), Request(input_ids=SHORT, max_new_tokens=5)) == greedy(
        reference(folder), SHORT, 5
    )


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    folder = write_random(tmp_path / "model", CONFIGS["gpt2"])
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "unheard-of", "architectures": ["OddForCausalLM"]}
    config["auto_map"] = {"AutoConfig": "odd.OddConfig", "AutoModelForCausalLM": "odd.OddForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config))
    ran = tmp_path / "ran"
    (folder / "odd.py").write_text(f"open({str(ran)!r}, 'w')")
    with pytest.raises(EngineLoadError, match="transformers cannot load it"):
        Engine(folder)
    assert not ran.exists()


def test_sizes_that_transformers_refuses_are_refused_in_its_words(tmp_path: Path) -> None:
    folder = write_random(tmp_path, CONFIGS["gemma"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"head_dim": 15}))
    with pytest.raises(EngineLoadError, match=r"(?s)transformers cannot load it .*even rotary dimension"):
        Engine(folder)


def test_a_checkpoint_that_lacks_tensors_is_refused(tmp_path: Path) -> None:
    folder = write_random(tmp_path, CONFIGS["gpt2"])
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("transformer.h.1.mlp.c_fc.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineLoadError, match=r"1 tensors missing or unknown, first 'transformer\.h\.1"):
        Engine(folder)
