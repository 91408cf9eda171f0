"""The rules, and what applies them."""

from __future__ import annotations

from pathlib import Path

from trtspec.triton_repo.layout import open_layout
from trtspec.triton_repo.lint import engines, launch, models, pairing, parameters, safety, tensors, texts
from trtspec.triton_repo.lint.finding import Finding, Rule

RULES = (
    Rule("config.readable", "error", "Triton can read each config.pbtxt.", texts.unreadable),
    Rule("config.placeholder", "error", "No ${…} is left where Triton reads a value.", texts.placeholder),
    Rule("config.unset", "warning", "No parameter is left as ${…}.", texts.unset_parameter),
    Rule("model.name", "error", "A model has the name of its folder.", models.name),
    Rule("model.version", "error", "A model has a version with what starts it.", models.version_folder),
    Rule("model.loop", "error", "A model drafts and verifies, and knows a draft.", models.speculates),
    Rule("model.reference", "error", "Models that are referred to are there.", models.reference),
    Rule("model.pair", "error", "Target and draft are two models with two engines.", models.two_engines),
    Rule("model.instances", "error", "An engine is loaded once on its GPUs.", models.instances),
    Rule("model.loop-instances", "warning", "The loop can fill the engine.", models.loop_instances),
    Rule("ensemble.tensor", "error", "An ensemble hands on tensors that exist.", models.ensemble_tensor),
    Rule("tensor.missing", "error", "No tensor that the loop uses is missing.", tensors.missing),
    Rule("tensor.absent", "warning", "No other tensor of the contract is missing.", tensors.absent),
    Rule("tensor.unknown", "warning", "No tensor has a name that nothing uses.", tensors.unknown),
    Rule("tensor.dtype", "error", "Tensors have the contract's data types.", tensors.dtype),
    Rule("tensor.dims", "error", "Tensors have the contract's dims.", tensors.dims),
    Rule("tensor.optional", "error", "What requests may leave out is optional.", tensors.optional),
    Rule("tensor.shape", "error", "Inputs are reshaped and ragged as the contract says.", tensors.shape),
    Rule("parameter.required", "error", "Parameters that a model needs are there.", parameters.required),
    Rule("parameter.value", "error", "Parameters say what the backend understands.", parameters.value),
    Rule("parameter.unknown", "warning", "The backend knows each parameter.", parameters.unknown),
    Rule("parameter.obsolete", "error", "No parameter is one that the backend refuses.", parameters.obsolete),
    Rule("parameter.beams", "error", "max_beam_width is 1.", parameters.beam_width),
    Rule("parameter.echo", "error", "exclude_input_in_output is off for both engines.", parameters.echo),
    Rule("decoupled.loop", "error", "Our loop is decoupled.", pairing.loop_decoupled),
    Rule("decoupled.leaves", "error", "Both engines are decoupled under our loop.", pairing.leaves_decoupled),
    Rule("decoupled.nvidia", "error", "Neither is under NVIDIA's loop.", pairing.nvidia_decoupled),
    Rule("batch.dimension", "error", "Engines' models have a batch dimension.", pairing.batch_dimension),
    Rule("batch.size", "error", "max_batch_size is within the engine's.", pairing.batch_size),
    Rule(
        "draft.length",
        "error",
        "γ is a number, auto or a table, within what the target was built for.",
        pairing.draft_length,
    ),
    Rule("draft.rows", "warning", "Each row of a table of γ is reached.", pairing.draft_rows),
    Rule("limits.engine", "error", "The loop's limits are within the engines'.", pairing.limits),
    Rule("logits.dtype", "error", "Logits have the dtype that the engine gives.", pairing.logits_dtype),
    Rule("logits.agree", "error", "Logits have one dtype in all models.", pairing.logits_agree),
    Rule("cache.reuse", "error", "Both engines reuse their key-value cache.", pairing.cache_reuse),
    Rule("cache.share", "warning", "Engines on one GPU share its memory.", pairing.cache_share),
    Rule("cache.size", "error", "The cache holds at least one sequence.", pairing.cache_size),
    Rule("cache.window", "warning", "Attention sees the whole sequence.", pairing.attention_window),
    Rule("engine.reachable", "warning", "Engines are where the configuration says.", engines.reachable),
    Rule("engine.whole", "error", "An engine folder has its config and all ranks.", engines.whole),
    Rule("engine.drafts", "error", "The target was built to take drafted tokens.", engines.takes_drafts),
    Rule("engine.vocabulary", "error", "Target and draft have equal vocabularies.", engines.vocabulary),
    Rule("engine.version", "error", "Target and draft are of one TensorRT-LLM.", engines.version),
    Rule("engine.context", "warning", "The draft holds what the target holds.", engines.context),
    Rule("engine.reuse", "error", "Engines were built so that the cache can be reused.", engines.reuse),
    Rule("engine.cache-type", "warning", "The cache is not quantised.", engines.cache_quantization),
    Rule("ranks.gpus", "error", "Each rank has a GPU.", launch.gpus),
    Rule("ranks.participants", "error", "Each rank has an MPI rank.", launch.participants),
    Rule("ranks.both", "error", "Both models have participant_ids, or neither.", launch.partial),
    Rule("ranks.overlap", "error", "An MPI rank belongs to one model; 0 to none.", launch.overlap),
    Rule("ranks.fast-logits", "error", "Fast logits are on in both, with ranks given.", launch.fast_logits),
    Rule("launch.orchestrator", "error", "Several ranks go with the orchestrator.", launch.orchestrator),
    Rule("launch.spawn", "error", "Without spawning, ranks are given.", launch.spawning),
    Rule("launch.world-size", "error", "There is a process for each rank.", launch.world_size),
    Rule("unsafe.remote-code", "error", "No setting turns trust_remote_code on.", safety.remote_code),
    Rule("unsafe.remote-tokenizer", "warning", "No model turns it on.", safety.remote_code_in_models),
    Rule("unsafe.address", "warning", "The server listens where it was told to.", safety.address),
    Rule("unsafe.shared-memory", "warning", "A container has room for tensors.", safety.shared_memory),
    Rule("unsafe.outside", "warning", "Nothing leads out of the repository.", safety.outside),
)


def lint(repository: Path) -> tuple[Finding, ...]:
    """Return what is wrong with a repository, by file; no server is needed.

    Raises:
        RepositoryError: it is no folder, or has no model.
    """
    layout = open_layout(repository)
    found = [
        Finding(
            rule.id,
            rule.severity,
            complaint.file.relative_to(repository).as_posix(),
            complaint.line,
            complaint.message,
            complaint.repair,
        )
        for rule in RULES
        for complaint in rule.check(layout)
    ]
    return tuple(sorted(found, key=lambda finding: (finding.file, finding.line or 0, finding.rule)))
