"""The reference proves itself before it judges.

A model small enough to be computed by hand, with weights that are a formula, has to give the known
logits: torch and transformers compute here what a Llama is defined to be. Then the reference itself:
one pass over a text has to say what reading it token by token says.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from trtspec.client.verify.findings import Finding
from trtspec.client.verify.loading import no_progress_bar
from trtspec.client.verify.reference import Reference
from trtspec.dtype_noise import Noise

PART = "reference"
PROBE = "def main():\n    return 0\n"
KNOWN_IDS = (1, 5, 3, 7, 2)
# The first four logits of the last row of `known_model` on KNOWN_IDS; computed with numpy in float64.
KNOWN_LOGITS = (-2.0969511, -2.7934631, -2.2360783, -0.6749889)
KNOWN_TOLERANCE = 1e-5


def self_test(reference: Reference) -> Generator[Finding, None, None]:
    """Yield what the reference had to show, and who it is."""
    about = "; ".join(f"{name} {value}" for name, value in reference.about.items())
    yield Finding(PART, "identity", "ok", f"{reference.name}; {about}")
    yield from reference.proofs()
    yield _one_pass(reference)


def known_answer() -> Finding:
    """Whether torch and transformers compute a Llama as it is defined."""
    found = np.array(known_logits())
    off = float(np.abs(found - np.array(KNOWN_LOGITS)).max())
    detail = f"logits of a model given by a formula are off by {off:.1g} of {KNOWN_TOLERANCE:g} allowed"
    return Finding(PART, "known answer", "ok" if off <= KNOWN_TOLERANCE else "defect", detail)


def known_logits() -> list[float]:
    """Return what transformers makes of the model that is given by a formula."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        rms_norm_eps=1e-5,
        max_position_embeddings=16,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    # On no device: only the names and shapes are wanted, and torch's generator stays as it is.
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    weights = {name: torch.from_numpy(formula(name, shape)) for name, shape in shapes.items()}
    with no_progress_bar():
        model = LlamaForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=torch.float32)
    with torch.inference_mode():
        logits_TV = model(torch.tensor([KNOWN_IDS]), use_cache=False).logits[0]
    return [float(value) for value in logits_TV[-1, : len(KNOWN_LOGITS)]]


def formula(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return a weight of the known model: a sine of the element's number and the name's letters."""
    number = np.arange(1, int(np.prod(shape)) + 1, dtype=np.float64)
    values = np.sin(number * 0.7 + sum(name.encode()) % 101).reshape(shape)
    weights: NDArray[np.float32] = (1 + 0.1 * values if "norm" in name else 0.5 * values).astype(np.float32)
    return weights


def _one_pass(reference: Reference) -> Finding:
    ids = reference.encode(PROBE)
    together = reference.logits(ids[:1], ids[1:])
    apart = np.stack([reference.logits(ids[: n + 1], ())[0] for n in range(len(ids))])
    noise = Noise(reference.arithmetic, reference.layers, reference.width)
    off = float(np.abs(together - apart).max())
    allowed = min(noise.bound(row_V) for row_V in together)
    detail = f"one pass against {len(ids)}: logits differ by {off:.1g}, rounding explains {allowed:.1g}"
    return Finding(PART, "one pass", "ok" if off <= allowed else "defect", detail)
