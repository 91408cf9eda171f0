"""The decoder of a checkpoint, for the memory plan: counted from weight headers, else from config.json."""

from __future__ import annotations

import math
from pathlib import Path

from trtspec.build.check.body import LAYER, Body, is_embedding, is_head
from trtspec.build.check.model_shape import FLOATS
from trtspec.build.checkpoint import Checkpoint
from trtspec.build.hub import Hub, open_source
from trtspec.build.json_file import read_object
from trtspec.engines.memory.decoder import Counted, Decoder, decoder_of
from trtspec.errors import PlanError

FP8 = {"F8_E4M3", "F8_E5M2"}


def read_decoder(source: str, hub: Hub | None = None) -> Decoder:
    """Return the decoder of a folder, of a lone config.json (or its folder), or of a model on the hub.

    Raises:
        CheckpointError: the source cannot be read.
        PlanError: it does not say how large it is.
    """
    path = Path(source)
    if path.is_file():
        return decoder_of(read_object(path), path.parent.name or path.name)
    if (path / "config.json").is_file() and not any(path.glob("*.safetensors*")):
        return decoder_of(read_object(path / "config.json"), path.name)
    return decoder_of_checkpoint(open_source(source, hub), path.name)


def decoder_of_checkpoint(checkpoint: Checkpoint, name: str) -> Decoder:
    """Return the decoder of a checkpoint by what its weights are, not only by what config.json says.

    Raises:
        PlanError: its matrices are packed, so that their number is not known.
    """
    tensors = Body.of(checkpoint).outside
    matrices = {n: t for n, t in tensors.items() if LAYER.match(n) and len(t.shape) > 1}
    packed = [n for n, tensor in matrices.items() if tensor.dtype not in {*FLOATS, *FP8}]
    if packed:
        raise PlanError(
            f"{name}: {len(packed)} matrices of {matrices[packed[0]].dtype}, first {packed[0]}, are packed; "
            "plan with the checkpoint it was quantised from"
        )
    parameters = {n: math.prod(tensor.shape) for n, tensor in tensors.items()}
    tied = not any(map(is_head, tensors))
    vocab_size = checkpoint.vocab_size
    embedding = sum(parameters[n] for n in tensors if is_embedding(n))
    in_matrices = sum(parameters[n] for n in matrices)
    return decoder_of(
        checkpoint.config,
        name,
        Counted(
            vocab=vocab_size,
            tied=tied,
            matrices=in_matrices,
            vectors=sum(parameters.values()) - in_matrices - embedding * (1 if tied else 2),
            is_fp8=any(tensor.dtype in FP8 for tensor in matrices.values()),
        ),
    )
