"""What a checkpoint *is*: a language model of its own, or a part that only works inside another one.

Named from config.json and from the tensors, because either alone misleads: an EAGLE head calls itself
LlamaForCausalLM, and a model that carries a module for multi-token prediction is still a whole model.
Which TensorRT-LLM class reads what: its documentation of speculative decoding, 1.2 to 1.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.build.check.body import MODULES, Body
from trtspec.build.checkpoint import Checkpoint

# The kinds that can stand alone.
LANGUAGE_MODELS = frozenset({"causal-lm", "parallel-lm"})

Config = Mapping[str, Any]
Signs = Iterable[str]


@dataclass(frozen=True)
class Identity:
    """What a checkpoint is, and by which signs."""

    kind: str  # "causal-lm", "eagle3", …
    title: str
    stand_alone: bool  # can be used as a target or a draft of its own
    evidence: tuple[str, ...]
    reason: str = ""  # why it cannot stand alone
    runtime: str = "tensorrt, pytorch, cpu"  # who can use it
    carries: str = ""  # a drafting module inside a whole model


def identify(checkpoint: Checkpoint) -> Identity:
    """Return what the checkpoint is, from its config and the names and shapes of its tensors."""
    config, body = checkpoint.config, Body.of(checkpoint)
    for kind in KINDS:
        signs = tuple(kind.signs(config, body))
        if signs:
            return Identity(kind.name, kind.title, False, signs, kind.reason, _runtime(kind, config))
    missing = body.missing(config)
    if missing:
        reason = f"a causal LM has its {missing.split(' (')[0]}"
        return Identity("incomplete", "part of a model", False, (f"no {missing}",), reason, NO_RUNTIME)
    evidence = (architecture_of(config) or "no architecture named", f"decoder layers: {len(body.layers)}")
    if any(config.get(key) is not None for key in ("pard_token", "ptd_token_id")):
        return Identity(
            "parallel-lm",
            "a causal LM tuned to draft in parallel (PARD)",
            True,
            (*evidence, "pard_token in config.json"),
            runtime="tensorrt, pytorch, cpu, token by token; in parallel TensorRT-LLM's PyTorch runtime "
            "(PARDDecodingConfig)",
        )
    return Identity("causal-lm", "a stand-alone causal LM", True, evidence, carries=body.carries())


def architecture_of(config: Config) -> str:
    """Return the class that the checkpoint was saved from, "" where config.json names none."""
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _called(config: Config, *words: str) -> Signs:
    """Yield a sign where the class, the family or the speculators algorithm has one of the words."""
    speculators = config.get("speculators_config")
    algorithm = speculators.get("algorithm") if isinstance(speculators, dict) else None
    for key, name in (
        ("architectures", architecture_of(config)),
        ("model_type", config.get("model_type")),
        ("speculators_model_type", config.get("speculators_model_type")),
        ("speculators algorithm", algorithm),
    ):
        plain = re.sub(r"[-_]", "", str(name or "")).lower()
        if any(word in plain for word in words):
            yield f"{key} {name}"


def _keys(config: Config, body: Body, *keys: str) -> Signs:
    """Yield a sign for each key with a value; a whole model may have a drafter's keys and not be one."""
    if not body.whole:
        yield from (f"{key} in config.json" for key in keys if config.get(key))


def _fused(body: Body, fits: Callable[[int], bool]) -> Signs:
    """Yield a sign when fc joins as many hidden states as fits: its shape is [hidden, n × hidden]."""
    for name, tensor in body.outside.items():
        if re.search(r"^(?:model\.)?(?:eagle_)?fc\.weight$", name) and len(tensor.shape) == 2:
            out, into = tensor.shape
            if out and into % out == 0 and fits(into // out):
                yield f"tensor {name} {list(tensor.shape)} joins {into // out} hidden states"


def _encoder_decoder(config: Config, body: Body) -> Signs:
    if config.get("is_encoder_decoder") is True:
        yield "is_encoder_decoder in config.json"
    sides = [list(body.named(rf"^(?:model\.|transformer\.)?{side}\.")) for side in ("encoder", "decoder")]
    if all(sides):
        yield from (sign for side in sides for sign in side)


def _dspark(config: Config, body: Body) -> Signs:
    yield from _called(config, "dspark")
    yield from body.named(r"(?:^|\.)markov_head\.", r"(?:^|\.)markov_w1")
    yield from _keys(config, body, "dspark_config", "dspark_block_size", "markov_rank", "dspark_markov_rank")
    inner = config.get("dflash_config")
    if isinstance(inner, dict) and (inner.get("markov_rank") or inner.get("projector_type") == "dspark"):
        yield "a Markov head in dflash_config"


def _dflash(config: Config, body: Body) -> Signs:
    yield from _called(config, "dflash")
    yield from _keys(config, body, "dflash_config")
    if list(body.named(r"^(?:model\.)?fc\.weight$")):
        yield from body.named(r"^(?:model\.)?hidden_norm\.weight$")


def _eagle3(config: Config, body: Body) -> Signs:
    yield from _called(config, "eagle3", "peagle")
    yield from body.named(r"^(?:d2t|t2d)$", r"(?:^|\.)midlayer\.", r"layers\.0\.hidden_norm\.")
    yield from _keys(config, body, "eagle_aux_hidden_state_layer_ids")
    yield from _fused(body, lambda states: states >= 3)


def _eagle(config: Config, body: Body) -> Signs:
    if not config.get("vision_config"):  # a family of vision models has the same name
        yield from _called(config, "eagle")
    yield from _fused(body, lambda states: states == 2)


def _medusa(config: Config, body: Body) -> Signs:
    yield from _called(config, "medusa")
    yield from _keys(config, body, "medusa_num_heads", "medusa_num_layers")
    yield from body.named(MODULES["Medusa heads"].pattern, r"^(?:heads\.)?\d+\.\d+\.linear\.weight$")


def _mtp(config: Config, body: Body) -> Signs:
    if re.search(r"MTP(?:$|Model|Draft)|NextN$|Assistant", architecture_of(config)):
        yield f"architectures {architecture_of(config)}"
    yield from _called({**config, "architectures": []}, "mtp", "assistant")
    yield from body.named(MODULES["an MTP module"].pattern, r"^pre_projection\.weight$")


def _multimodal(config: Config, body: Body) -> Signs:
    yield from (
        f"{key} in config.json" for key in ("text_config", "vision_config", "audio_config") if key in config
    )
    yield from body.named(r"^(?:model\.)?(?:vision_tower|vision_model|visual|audio_tower)\.")


def _no_lm(config: Config, body: Body) -> Signs:
    if re.search(r"For(?:MaskedLM|\w*Classification|QuestionAnswering|RewardModel)", architecture_of(config)):
        yield f"architectures {architecture_of(config)}"


@dataclass(frozen=True)
class Kind:
    """One kind of checkpoint that cannot stand alone."""

    name: str
    title: str
    reason: str
    runtime: str
    signs: Callable[[Config, Body], Signs]


ON_TARGET = "it reads the target's hidden states and cannot run without them"
NO_RUNTIME = "none of trtspec's runtimes"
ENGINES = "TensorRT-LLM 1.2.1 engines (trtllm-build --speculative_decoding_mode {})"
PYTORCH = "TensorRT-LLM's PyTorch runtime ({})"

# From the most to the least specific: the first kind with a sign is the answer.
KINDS = (
    Kind(
        "encoder-decoder",
        "an encoder-decoder model",
        "its decoder attends to an encoder; it does not continue a text",
        NO_RUNTIME,
        _encoder_decoder,
    ),
    Kind(
        "adapter",
        "a LoRA adapter",
        "it only changes the weights of another model",
        f"{NO_RUNTIME} before it is merged into its base",
        lambda config, body: body.named(r"\.lora_[AB]\."),
    ),
    Kind(
        "dspark",
        "a DSpark drafter",
        f"a block of masked tokens with a Markov head; {ON_TARGET}",
        PYTORCH.format("DSparkDecodingConfig, from 1.3.0rc27"),
        _dspark,
    ),
    Kind(
        "dflash",
        "a DFlash drafter",
        f"it fills a block of masked tokens at once; {ON_TARGET}",
        PYTORCH.format("DFlashDecodingConfig, from the 1.3 pre-releases"),
        _dflash,
    ),
    Kind("eagle3", "an EAGLE-3 head", ON_TARGET, PYTORCH.format("Eagle3DecodingConfig"), _eagle3),
    Kind("eagle", "an EAGLE head", ON_TARGET, ENGINES.format("eagle"), _eagle),
    Kind("medusa", "Medusa heads", ON_TARGET, ENGINES.format("medusa"), _medusa),
    Kind(
        "redrafter",
        "a ReDrafter head",
        ON_TARGET,
        ENGINES.format("explicit_draft_tokens"),
        lambda config, body: _called(config, "redrafter", "recurrentdrafter"),
    ),
    Kind(
        "mlp-speculator",
        "an MLP speculator",
        ON_TARGET,
        f"{NO_RUNTIME}; vLLM reads it",
        lambda config, body: (
            *_called(config, "mlpspeculator"),
            *body.named(r"^speculator\.(?:emb|head|proj)\."),
        ),
    ),
    Kind(
        "mtp",
        "a module for multi-token prediction (MTP)",
        ON_TARGET,
        PYTORCH.format("MTPDecodingConfig, together with its target"),
        _mtp,
    ),
    Kind(
        "speculator",
        "a head in the speculators format",
        ON_TARGET,
        f"{NO_RUNTIME}; vLLM reads it",
        lambda config, body: _keys(config, body, "speculators_model_type", "speculators_config"),
    ),
    Kind(
        "multimodal",
        "a multimodal model",
        "its language model is wrapped in another",
        f"{NO_RUNTIME} before its language model is saved alone",
        _multimodal,
    ),
    Kind("no-lm", "a model without a language-model head", "it gives no next token", NO_RUNTIME, _no_lm),
)


def _runtime(kind: Kind, config: Config) -> str:
    """Return who can use it; a head in the speculators library's packaging is vLLM's first."""
    packaged = config.get("speculators_model_type") or config.get("speculators_config")
    if packaged and "vLLM" not in kind.runtime:
        return f"vLLM reads this packaging (speculators); in its makers' format {kind.runtime}"
    return kind.runtime
