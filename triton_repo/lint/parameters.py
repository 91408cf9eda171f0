"""Rules about parameters: which must be there, and what they may say."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from trtspec.triton_repo import nvidia_models as nvidia
from trtspec.triton_repo.config_file import ConfigFile
from trtspec.triton_repo.layout import Layout
from trtspec.triton_repo.leaf_parameters import (
    FALSE_TEXTS,
    LEAF_PARAMETERS,
    OBSOLETE_LEAF_PARAMETERS,
    Parameter,
)
from trtspec.triton_repo.lint.finding import Complaint

# What our loop reads when it starts.
LOOP_PARAMETERS = (
    Parameter("tensorrt_llm_model_name", required=True),
    Parameter("tensorrt_llm_draft_model_name", required=True),
    Parameter("num_draft_tokens", required=True),
    Parameter("max_draft_len", "integer", required=True),
    Parameter("max_seq_len", "integer", required=True),
    Parameter("draft_max_seq_len", "integer", required=True),
    Parameter("vocab_size", "integer", required=True),
    Parameter("eos_token_ids", "integers", present=True),
    Parameter("exclude_input_in_output", "flag", required=True),
    Parameter("max_inflight_requests", "integer", required=True),
    Parameter("max_rows_per_call", "integer", required=True),
    Parameter("engine_runtime", "choice", choices=("cpu", "tensorrt"), required=True),
    Parameter("target_timeout_s", "seconds", required=True),
    Parameter("draft_timeout_s", "seconds", required=True),
)


def required(layout: Layout) -> Iterator[Complaint]:
    for file, parameters in _described(layout):
        written = file.config.parameters if file.config else {}
        for parameter in parameters:
            if parameter.required and parameter.name not in file.parameters:
                message = f"parameter {parameter.name} has no value; the model does not load without"
            elif parameter.present and parameter.name not in written:
                message = (
                    f"parameter {parameter.name} is missing; the model does not load without, even unused"
                )
            else:
                continue
            line = file.line_of("key", parameter.name)
            yield Complaint(file.path, message, "add it" if line is None else "give it a value", line)


def value(layout: Layout) -> Iterator[Complaint]:
    for file, parameters in _described(layout):
        for parameter in parameters:
            found = file.parameters.get(parameter.name)
            expected = parameter.fault(found) if found is not None else None
            if expected:
                # Our loop takes it, or stops at it; NVIDIA's models do neither.
                effect = "" if parameters is LOOP_PARAMETERS else "; so it counts as not set"
                yield Complaint(
                    file.path,
                    f"parameter {parameter.name} is {found!r}, expected {expected}{effect}",
                    "correct it",
                    file.line_of("key", parameter.name),
                )


def unknown(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        if not leaf.is_cpp:
            continue
        known = [parameter.name for parameter in LEAF_PARAMETERS]
        for name in sorted(set(leaf.config.parameters) - {*known, *OBSOLETE_LEAF_PARAMETERS}):
            near = difflib.get_close_matches(name, known, 1)
            yield Complaint(
                leaf.file.path,
                f"nothing reads the parameter {name}",
                f"did you mean {near[0]}?" if near else "remove it",
                leaf.line_of_parameter(name),
            )


def obsolete(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        for old, new in OBSOLETE_LEAF_PARAMETERS.items():
            if leaf.is_cpp and old in leaf.config.parameters:
                yield Complaint(
                    leaf.file.path,
                    f"the backend takes {old} no longer",
                    f"rename it {new}",
                    leaf.line_of_parameter(old),
                )


def beam_width(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        if leaf.parameter("max_beam_width") not in ("", "1"):
            yield Complaint(
                leaf.file.path,
                f"max_beam_width is {leaf.parameter('max_beam_width')}, drafted tokens go with 1 only",
                "set it to 1",
                leaf.line_of_parameter("max_beam_width"),
            )


def echo(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        if leaf.parameter("exclude_input_in_output") not in ("", *FALSE_TEXTS):
            yield Complaint(
                leaf.file.path,
                "exclude_input_in_output is on; loops up to TensorRT-LLM 1.1 take the draft's first tokens "
                "for the prompt then",
                "set it to false",
                leaf.line_of_parameter("exclude_input_in_output"),
            )


def _described(layout: Layout) -> Iterator[tuple[ConfigFile, Sequence[Parameter]]]:
    """Yield each readable model whose parameters are known, with them."""
    for leaf in layout.leaves:
        if leaf.is_cpp:
            yield leaf.file, LEAF_PARAMETERS
    if layout.loop and layout.loop.config and layout.loop_owner == "trtspec":
        yield layout.loop, LOOP_PARAMETERS
    if layout.loop_owner == "nvidia":
        for name, parameters in (
            (nvidia.PREPROCESSING, nvidia.PREPROCESSING_PARAMETERS),
            (nvidia.POSTPROCESSING, nvidia.POSTPROCESSING_PARAMETERS),
        ):
            if name in layout.models and layout.models[name].config:
                yield layout.models[name], parameters
