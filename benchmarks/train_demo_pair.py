"""Train a demo pair again, from text that any machine has: the Python standard library.

    python benchmarks/train_demo_pair.py OUTPUT            # about 25 minutes on two cores
    python benchmarks/train_demo_pair.py OUTPUT --scale 0.01   # a quick try

Recipe: a tokenizer; a target of 8 layers, trained, grown to 16 (each layer is followed by a new one
that starts as the identity) and trained on; a draft of 1 layer, trained on text and then distilled
on the target's distributions. Distillation is the last phase: from scratch it loses.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 4096
PAD, BOS, EOS = 0, 1, 2
NOT_TEXT_OF_OURS = {"site-packages", "test", "tests", "idle_test", "__pycache__", "pydoc_data", "encodings"}


@dataclass(frozen=True)
class Phase:
    """One stretch of training."""

    seconds: float
    learning_rate: float
    batch_size: int
    length: int


TARGET_PHASES = (Phase(500, 4e-3, 16, 256), Phase(480, 3e-3, 16, 256))
DRAFT_PHASES = (Phase(220, 6e-3, 32, 256), Phase(120, 4e-3, 32, 256))


def corpus() -> tuple[list[str], list[str]]:
    """Return training and held-out sources, split by a hash of their name: the same on each run."""
    root = Path(sysconfig.get_path("stdlib"))
    train: list[str] = []
    held_out: list[str] = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if NOT_TEXT_OF_OURS & set(name.parts):
            continue
        text = path.read_bytes().decode("ascii", "ignore")
        if 400 <= len(text) <= 400_000:
            digest = hashlib.sha1(name.as_posix().encode(), usedforsecurity=False)
            (held_out if int(digest.hexdigest(), 16) % 20 == 0 else train).append(text)
    return train, held_out


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """Return all texts as one row of ids, each between <s> and </s>."""
    ids: list[int] = []
    for text in texts:
        ids += [BOS, *tokenizer.encode(text, add_special_tokens=False), EOS]
    return torch.tensor(ids)


def new_model(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    return LlamaForCausalLM(config)


def grow(small: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return the model with a new layer after each: a copy whose outputs are zero, so it adds nothing yet."""
    config = small.config
    big = new_model(
        2 * config.num_hidden_layers,
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
        config.num_key_value_heads,
    )
    big.model.embed_tokens.load_state_dict(small.model.embed_tokens.state_dict())
    big.model.norm.load_state_dict(small.model.norm.state_dict())
    for i, layer in enumerate(small.model.layers):
        big.model.layers[2 * i].load_state_dict(layer.state_dict())
        big.model.layers[2 * i + 1].load_state_dict(layer.state_dict())
        torch.nn.init.zeros_(big.model.layers[2 * i + 1].self_attn.o_proj.weight)
        torch.nn.init.zeros_(big.model.layers[2 * i + 1].mlp.down_proj.weight)
    return big


def windows(ids: Tensor, phase: Phase) -> Iterator[Tensor]:
    """Yield random batches, shape [batch, length + 1]."""
    generator = torch.Generator().manual_seed(1)
    while True:
        starts = torch.randint(0, len(ids) - phase.length - 1, (phase.batch_size,), generator=generator)
        yield torch.stack([ids[start : start + phase.length + 1] for start in starts])


def train(
    model: LlamaForCausalLM, ids: Tensor, phase: Phase, teacher: LlamaForCausalLM | None = None
) -> LlamaForCausalLM:
    """Train for the phase's seconds: on the text, or on the teacher's distributions over it."""
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.dim() != 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=phase.learning_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=phase.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    base_rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    started = time.monotonic()
    for step, batch in enumerate(windows(ids, phase)):
        progress = (time.monotonic() - started) / phase.seconds
        if progress >= 1:
            break
        rate = min(1.0, (step + 1) / 30) * (0.05 + 0.475 * (1 + math.cos(math.pi * progress)))
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group, base_rate in zip(groups, base_rates, strict=True):
            group["lr"] = base_rate * rate
        loss = _loss(model, batch, teacher)
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if step % 20 == 0:
            print(f"  {progress:4.0%}  step {step}  loss {loss.item():.3f}", flush=True)
    return model


def _loss(model: LlamaForCausalLM, batch: Tensor, teacher: LlamaForCausalLM | None) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[:, :-1], use_cache=False).logits.float().flatten(0, 1)
        if teacher is None:
            return F.cross_entropy(logits, batch[:, 1:].flatten())
        with torch.no_grad():
            wanted = teacher(batch[:, :-1], use_cache=False).logits.float().flatten(0, 1)
    return F.kl_div(
        F.log_softmax(logits, -1), F.log_softmax(wanted, -1), log_target=True, reduction="batchmean"
    )


@torch.inference_mode()
def measure(target: LlamaForCausalLM, draft: LlamaForCausalLM, held_out: Tensor) -> dict[str, float]:
    """Return loss in nats per token, and α along held-out text: greedy matches, and Σ min(p, q)."""
    rows = held_out[: 40 * 257].view(40, 257)
    logits = target(rows[:, :-1]).logits.float()
    p, q = logits.softmax(-1), draft(rows[:, :-1]).logits.float().softmax(-1)
    return {
        "loss_target": F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item(),
        "alpha_greedy": (p.argmax(-1) == q.argmax(-1)).float().mean().item(),
        "alpha_sampled": torch.minimum(p, q).sum(-1).mean().item(),
    }


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.generation_config = GenerationConfig(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # The class that transformers 4, and so Triton's TensorRT-LLM containers, can load.
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    kept = {key: settings[key] for key in ("bos_token", "eos_token", "pad_token", "model_max_length")}
    file.write_text(json.dumps(kept | {"tokenizer_class": "PreTrainedTokenizerFast"}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all training times")
    arguments = parser.parse_args()
    target_phases, draft_phases = (
        [Phase(p.seconds * arguments.scale, p.learning_rate, p.batch_size, p.length) for p in phases]
        for phases in (TARGET_PHASES, DRAFT_PHASES)
    )
    texts, held_out_texts = corpus()
    tokenizer = train_tokenizer(texts)
    ids, held_out = encode(tokenizer, texts), encode(tokenizer, held_out_texts)
    print(f"{len(texts)} files, {len(ids)} tokens; {len(held_out_texts)} files held out")

    print("target, 8 layers")
    target = train(new_model(8, 256, 704, 4, 2), ids, target_phases[0])
    print("target, 16 layers")
    target = train(grow(target), ids, target_phases[1])
    print("draft, on text")
    draft = train(new_model(1, 128, 384, 2, 1), ids, draft_phases[0])
    print("draft, on the target's distributions")
    draft = train(draft, ids, draft_phases[1], teacher=target)

    print(json.dumps(measure(target, draft, held_out), indent=2))
    save(target, tokenizer, arguments.output / "target")
    save(draft, tokenizer, arguments.output / "draft")


if __name__ == "__main__":
    main()
