"""The sizes of a decoder that its memory depends on, from a config.json of Hugging Face or TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.errors import PlanError

# Of sizes that mean something: no float divides by JSON's longest integers.
LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Decoder:
    """A decoder by its sizes. Parameters are counts, whatever type they are stored in."""

    name: str
    layers: int
    hidden: int
    intermediate: int  # of the MLP; of all experts that run for a token, where there are experts
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool  # the head is the embedding
    context: int | None
    is_fp8: bool  # the matrices are stored in FP8
    matrices: int  # parameters of attention and MLP in all layers, which tensor parallelism splits
    vectors: int  # all else outside embedding and head: norms, biases, routers; each rank has them
    window: int | None = None  # tokens back that some layers attend to; None: all see the whole sequence

    @property
    def parameters(self) -> int:
        """All parameters; those of a tied head are counted once."""
        return self.embedding * (1 if self.tied else 2) + self.matrices + self.vectors

    @property
    def embedding(self) -> int:
        """Parameters of the token embedding, and of the head."""
        return self.vocab * self.hidden

    @property
    def kv_matrices(self) -> int:
        """Parameters of the key and value projections, which ranks beyond the KV heads hold again."""
        return 2 * self.layers * self.hidden * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Counted:
    """What the headers of the weights say, which config.json may not."""

    vocab: int
    tied: bool
    matrices: int
    vectors: int
    is_fp8: bool


@dataclass(frozen=True)
class _Family:
    """How a family's layers are made, where config.json does not say."""

    mlp_matrices: int = 3  # gate, up, down
    qkv_bias: bool = False
    all_biases: bool = False
    norms: int = 2  # in a layer
    norm_vectors: int = 1  # 2 for LayerNorm, which has a bias
    qk_norm: bool = False
    tied: bool = False


FAMILIES = {
    "LlamaForCausalLM": _Family(),
    "MistralForCausalLM": _Family(),
    "MixtralForCausalLM": _Family(),
    "Phi3ForCausalLM": _Family(),
    "Qwen2ForCausalLM": _Family(qkv_bias=True),
    "Qwen3ForCausalLM": _Family(qk_norm=True),
    "GemmaForCausalLM": _Family(tied=True),
    "Gemma2ForCausalLM": _Family(norms=4, tied=True),
    "Gemma3ForCausalLM": _Family(norms=4, qk_norm=True, tied=True),
    "GPT2LMHeadModel": _Family(mlp_matrices=2, all_biases=True, norm_vectors=2, tied=True),
}


def decoder_of(config: Mapping[str, Any], name: str, counted: Counted | None = None) -> Decoder:
    """Return the decoder that a config.json describes.

    Args:
        name: of the model, for messages.
        counted: what the weights hold; without it parameters are computed, for the families known here.

    Raises:
        PlanError: a size is missing, or parameters cannot be computed.
    """
    config = config.get("pretrained_config", config)  # of an engine that trtllm-build made
    hidden = _size(config, name, "hidden_size", "n_embd")
    heads = _size(config, name, "num_attention_heads", "n_head")
    experts, running = _experts(config)
    architecture = _architecture(config)
    family = FAMILIES.get(architecture)
    if counted is None and family is None:
        raise PlanError(
            f"{name}: config.json is of a {architecture}, whose parameters are only "
            "known from its weights; give the folder with the safetensors files"
        )
    if counted is None:
        _refuse_wrong(config, name)
    # GPT-2 leaves it out; where the weights are counted, only activations depend on it.
    may_lack = counted is not None or "n_embd" in config
    wide = positive(config, "intermediate_size", "n_inner") or (4 * hidden if may_lack else None)
    sizes = _Sizes(
        layers=_size(config, name, "num_hidden_layers", "n_layer"),
        hidden=hidden,
        expert_width=wide or _size(config, name, "intermediate_size"),
        heads=heads,
        kv_heads=positive(config, "num_key_value_heads") or heads,
        head_dim=positive(config, "head_dim", "head_size") or hidden // heads,
        experts=experts,
        positions=positive(config, "n_positions") or 0,
    )
    counted = counted or _count(config, name, sizes, family or _Family())
    return Decoder(
        name=name,
        layers=sizes.layers,
        hidden=hidden,
        intermediate=sizes.expert_width * running,
        heads=heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        vocab=counted.vocab,
        tied=counted.tied,
        context=positive(config, "max_position_embeddings", "n_positions"),
        is_fp8=counted.is_fp8,
        matrices=counted.matrices,
        vectors=counted.vectors,
        window=_window(config, sizes.layers),
    )


def _window(config: Mapping[str, Any], layers: int) -> int | None:
    # Only Qwen has the switch, off by default, and the layers before which nothing slides.
    is_qwen = str(config.get("model_type")).startswith("qwen")
    if not config.get("use_sliding_window", not is_qwen):
        return None
    kinds, full = config.get("layer_types"), positive(config, "max_window_layers")
    slides = "sliding_attention" in kinds if isinstance(kinds, list) else full is None or full < layers
    return positive(config, "sliding_window") if slides else None


@dataclass(frozen=True)
class _Sizes:
    layers: int
    hidden: int
    expert_width: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    positions: int


def _count(config: Mapping[str, Any], name: str, sizes: _Sizes, family: _Family) -> Counted:
    """Return the parameters of a model that is only known by its config.json."""
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    attention = sizes.hidden * (queries + 2 * keys) + queries * sizes.hidden
    mlp = family.mlp_matrices * sizes.hidden * sizes.expert_width * sizes.experts
    vectors = family.norms * family.norm_vectors * sizes.hidden
    vectors += 2 * sizes.head_dim if family.qk_norm else 0
    if family.qkv_bias or family.all_biases or config.get("attention_bias"):
        vectors += queries + 2 * keys
    if family.all_biases or config.get("attention_bias"):
        vectors += sizes.hidden
    if family.all_biases or config.get("mlp_bias"):
        vectors += (family.mlp_matrices - 1) * sizes.expert_width + sizes.hidden
    vectors += sizes.hidden * sizes.experts if sizes.experts > 1 else 0  # the router
    last = family.norm_vectors * sizes.hidden
    return Counted(
        vocab=_size(config, name, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        matrices=sizes.layers * (attention + mlp),
        vectors=sizes.layers * vectors + last + sizes.positions * sizes.hidden,
        is_fp8=_is_fp8(config),
    )


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures") or config.get("architecture")
    first = named[0] if isinstance(named, list) else named
    return first if isinstance(first, str) else "model of no named class"


def _refuse_wrong(config: Mapping[str, Any], name: str) -> None:
    """Raise where sizes that may be left out are given and are none; nothing else is known of the model."""
    keys = ("intermediate_size", "n_inner", "num_key_value_heads", "head_dim", "max_position_embeddings")
    wrong = [
        f"{key} {config[key]!r:.40}"
        for key in keys
        if config.get(key) is not None and positive(config, key) is None
    ]
    if wrong:
        raise PlanError(f"{name}: config.json says {', '.join(wrong)}; expected 1 or more")
    heads, kv_heads = (positive(config, key) or 1 for key in ("num_attention_heads", "num_key_value_heads"))
    if heads % kv_heads and "num_attention_heads" in config:
        raise PlanError(
            f"{name}: config.json says num_attention_heads {heads}, which cannot share "
            f"num_key_value_heads {kv_heads} evenly"
        )


def _experts(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many experts a layer has, and how many of them run for a token."""
    if isinstance(moe := config.get("moe"), dict):  # TensorRT-LLM's
        config = {"num_experts": moe.get("num_experts"), "num_experts_per_tok": moe.get("top_k")}
    experts = positive(config, "num_local_experts", "num_experts", "n_routed_experts") or 1
    return experts, (positive(config, "num_experts_per_tok") or 1) if experts > 1 else 1


def _is_fp8(config: Mapping[str, Any]) -> bool:
    for key in ("quantization_config", "quantization"):
        found = config.get(key)
        if isinstance(found, dict):
            return any("fp8" in str(found.get(entry)).lower() for entry in ("quant_algo", "quant_method"))
    return False


def positive(config: Mapping[str, Any], *keys: str) -> int | None:
    """Return the first of some entries of a config.json that is a positive whole number of 64 bits."""
    found = (config.get(key) for key in keys)
    return next((value for value in found if type(value) is int and 0 < value <= LARGEST), None)


def _size(config: Mapping[str, Any], name: str, *keys: str) -> int:
    value = positive(config, *keys)
    if value is None:
        raise PlanError(
            f"{name}: config.json has no {keys[0]} that is a positive number; "
            "expected the config.json of a decoder-only model"
        )
    return value
