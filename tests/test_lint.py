"""`trtspec repo lint`: each rule finds what it is for, where it is, and nothing else does."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from nvidia_layout import write_layout
from tensorrt_engines import write_engine, write_pair

from trtspec.engines.pair import EnginePair
from trtspec.errors import RepositoryError
from trtspec.triton_repo.launch import LaunchOptions
from trtspec.triton_repo.lint import RULES, lint
from trtspec.triton_repo.repository import RepositoryOptions, write_repository

TARGET, DRAFT, LOOP = (
    f"{name}/config.pbtxt" for name in ("tensorrt_llm", "tensorrt_llm_draft", "tensorrt_llm_bls")
)
IDS = {rule.id for rule in RULES}


@pytest.fixture(scope="module")
def tokenizer(demo_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    shutil.copyfile(demo_pair / "target" / "tokenizer.json", folder / "tokenizer.json")
    return folder


@pytest.fixture(scope="module")
def right(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two repositories with nothing wrong: nvidia/ of the recipe, its engines in it; and ours/.

    Ours is over engines of TensorRT-LLM, with fast logits so that it says everything about ranks.
    """
    folder = tmp_path_factory.mktemp("right")
    for role in ("target", "draft"):
        write_engine(folder / "nvidia" / "engines" / role, target=role == "target")
    write_layout(folder / "nvidia", Path("engines"), tokenizer)
    options = RepositoryOptions(launch=LaunchOptions(fast_logits=True))
    write_repository(write_pair(folder / "pair", tokenizer), folder / "ours", options)
    return folder


def replace(file: str, old: str, new: str, *, count: int = 1) -> Callable[[Path], None]:
    """An edit: one text of a file, that must be there, for another."""

    def edit(repository: Path) -> None:
        text = (repository / file).read_text()
        assert old in text, old
        (repository / file).write_text(text.replace(old, new, count))

    return edit


def substitute(file: str, pattern: str, new: str) -> Callable[[Path], None]:
    """An edit by a regular expression, which must match once."""

    def edit(repository: Path) -> None:
        text, count = re.subn(pattern, new, (repository / file).read_text(), flags=re.DOTALL)
        assert count == 1, (pattern, count)
        (repository / file).write_text(text)

    return edit


def parameter(file: str, key: str, value: str | None) -> Callable[[Path], None]:
    """An edit: a parameter has another value, or (None) is not there; added when it was not."""

    def edit(repository: Path) -> None:
        text = (repository / file).read_text()
        pattern = rf'parameters:? \{{\s*key: "{key}"\s*value:? \{{\s*(string_value: "[^"]*"\s*)?\}}\s*\}}\n'
        text = re.sub(pattern, "", text)
        if value is not None:
            text += f'parameters {{\n  key: "{key}"\n  value {{\n    string_value: "{value}"\n  }}\n}}\n'
        (repository / file).write_text(text)

    return edit


def tensor(file: str, name: str, old: str, new: str) -> Callable[[Path], None]:
    """An edit of one line of the tensor `name`."""
    return substitute(file, rf'(name: "{name}"[^{{}}]*?){old}', rf"\g<1>{new}")


def without_tensor(file: str, name: str) -> Callable[[Path], None]:
    return substitute(file, rf'\n  {{\n    name: "{name}"\n(    [^\n]*\n)+  }},', "")


def engine(role: str, **changes: object) -> Callable[[Path], None]:
    """An edit: an engine was built in another way."""

    def edit(repository: Path) -> None:
        own = {"target": "tensorrt_llm", "draft": "tensorrt_llm_draft"}[role]
        folder = repository / "engines" / role
        write_engine(
            folder if folder.is_dir() else repository / own / "1" / "engine",
            target=role == "target",
            **changes,
        )

    return edit


def add(file: str, text: str) -> Callable[[Path], None]:
    def edit(repository: Path) -> None:
        with (repository / file).open("a") as opened:
            opened.write(text)

    return edit


def remove(path: str) -> Callable[[Path], None]:
    def edit(repository: Path) -> None:
        found = repository / path
        shutil.rmtree(found) if found.is_dir() else found.unlink()

    return edit


def empty(path: str) -> Callable[[Path], None]:
    def edit(repository: Path) -> None:
        (repository / path).write_bytes(b"")

    return edit


def link_out(path: str) -> Callable[[Path], None]:
    def edit(repository: Path) -> None:
        (repository / path).symlink_to(repository.parent)

    return edit


def drop_ranks(repository: Path) -> None:
    """Neither engine's model says which ranks it has, nor asks for fast logits."""
    for file in (TARGET, DRAFT):
        parameter(file, "participant_ids", None)(repository)
        parameter(file, "speculative_decoding_fast_logits", "false")(repository)


@dataclass(frozen=True)
class Break:
    """A way in which a right repository becomes wrong, and what then is found."""

    rule: str
    layout: str
    edits: tuple[Callable[[Path], None], ...]
    file: str
    message: str
    # Rules that the same edit breaks too.
    besides: frozenset[str]

    def __str__(self) -> str:
        return f"{self.rule}-{self.layout}"


def broken(
    rule: str,
    layout: str,
    *edits: Callable[[Path], None],
    file: str = TARGET,
    says: str = "",
    besides: tuple[str, ...] = (),
) -> Break:
    return Break(rule, layout, edits, file, says, frozenset(besides))


START = 'tritonserver "$@" --backend-config="python,shm-region-prefix-name=trtspec_$$_2_"'

BREAKS = (
    broken(
        "config.readable",
        "nvidia",
        replace(TARGET, "max_batch_size", "max_batchsize"),
        says='"max_batchsize"',
    ),
    broken(
        "config.placeholder",
        "nvidia",
        replace(TARGET, "max_batch_size: 4", "max_batch_size: ${triton_max_batch_size}"),
        says="triton_max_batch_size",
    ),
    broken(
        "config.unset",
        "nvidia",
        parameter(TARGET, "medusa_choices", "${medusa_choices}"),
        says="medusa_choices",
    ),
    broken("model.name", "nvidia", replace(DRAFT, '"tensorrt_llm_draft"', '"tensorrt_llm"'), file=DRAFT),
    broken("model.version", "ours", remove("tensorrt_llm_bls/1/model.py"), file="tensorrt_llm_bls/1"),
    broken(
        "model.version",
        "ours",
        remove("tensorrt_llm_bls/1/tokenizer"),
        file="tensorrt_llm_bls/1",
        says="tokenizer.json",
    ),
    broken("model.version", "nvidia", remove("ensemble/1"), file="ensemble", says="no version folder"),
    broken("model.loop", "nvidia", parameter(LOOP, "tensorrt_llm_draft_model_name", None), file=LOOP),
    broken("model.loop", "nvidia", remove("tensorrt_llm_bls"), file=".", says="found no tensorrt_llm_bls"),
    broken(
        "model.reference",
        "ours",
        replace(LOOP, 'string_value: "tensorrt_llm"', 'string_value: "tensorrt_llm_2"'),
        file=LOOP,
        says="tensorrt_llm_2",
    ),
    broken("model.reference", "nvidia", remove("preprocessing"), file=LOOP, says="preprocessing"),
    broken(
        "model.pair",
        "ours",
        replace(LOOP, 'string_value: "tensorrt_llm_draft"', 'string_value: "tensorrt_llm"'),
        file=LOOP,
    ),
    broken(
        "model.pair",
        "nvidia",
        replace(DRAFT, "engines/draft", "engines/target"),
        engine("target", max_seq_len=2560),
        file=DRAFT,
        says="same engine",
    ),
    broken("model.instances", "nvidia", replace(TARGET, "count: 1", "count: 2")),
    broken(
        "model.loop-instances", "nvidia", replace(LOOP, "count: 4", "count: 1"), file=LOOP, says="1 at once"
    ),
    broken(
        "ensemble.tensor",
        "nvidia",
        replace("ensemble/config.pbtxt", 'key: "input_lengths"', 'key: "input_length"'),
        file="ensemble/config.pbtxt",
        says="input_length to tensorrt_llm",
    ),
    broken("tensor.missing", "nvidia", without_tensor(TARGET, "draft_input_ids"), says="draft_input_ids"),
    broken("tensor.absent", "nvidia", without_tensor(TARGET, "early_stopping"), says="early_stopping"),
    broken(
        "tensor.unknown",
        "nvidia",
        replace(
            TARGET,
            "input [\n",
            'input [\n  { name: "my_own" data_type: TYPE_INT32 dims: [ 1 ] optional: true },\n',
        ),
        says="my_own",
    ),
    broken(
        "tensor.dtype",
        "ours",
        tensor(TARGET, "seed", "TYPE_UINT64", "TYPE_INT64"),
        says="expected TYPE_UINT64",
    ),
    broken(
        "tensor.dims",
        "nvidia",
        tensor(TARGET, "draft_input_ids", r"dims: \[ -1 \]", "dims: [ 1 ]"),
        says="expected [-1]",
    ),
    broken(
        "tensor.optional", "nvidia", tensor(TARGET, "input_ids", "    optional: true\n", ""), says="input_ids"
    ),
    broken(
        "tensor.shape",
        "nvidia",
        tensor(TARGET, "input_ids", "    allow_ragged_batch: true\n", ""),
        says="input_ids",
    ),
    broken(
        "tensor.shape",
        "nvidia",
        replace(TARGET, "    reshape: { shape: [ ] }\n", "", count=1),
        says="input input_lengths",
    ),
    broken(
        "parameter.required",
        "nvidia",
        parameter(TARGET, "gpt_model_type", "${batching_strategy}"),
        says="gpt_model_type",
        besides=("config.unset",),
    ),
    broken("parameter.required", "ours", parameter(DRAFT, "xgrammar_tokenizer_info_path", None), file=DRAFT),
    broken("parameter.required", "ours", parameter(LOOP, "vocab_size", None), file=LOOP, says="vocab_size"),
    broken(
        "parameter.required",
        "nvidia",
        parameter("postprocessing/config.pbtxt", "tokenizer_dir", None),
        file="postprocessing/config.pbtxt",
    ),
    broken(
        "parameter.value", "nvidia", parameter(TARGET, "enable_kv_cache_reuse", "yes"), says="true or false"
    ),
    broken(
        "parameter.value",
        "nvidia",
        parameter(TARGET, "gpt_model_type", "inflight"),
        says="inflight_fused_batching",
    ),
    *(
        broken(
            "parameter.value",
            "ours",
            parameter(LOOP, "target_timeout_s", seconds),
            file=LOOP,
            says=f"target_timeout_s is '{seconds}', expected seconds, above 0",
        )
        for seconds in ("-5", "0.0", "nan")
    ),
    broken(
        "parameter.unknown", "nvidia", parameter(TARGET, "kv_cache_fraction", "0.5"), says="kv_cache_fraction"
    ),
    broken(
        "parameter.obsolete", "nvidia", parameter(TARGET, "worker_path", "/opt/worker"), says="worker_path"
    ),
    broken("parameter.beams", "nvidia", parameter(TARGET, "max_beam_width", "4")),
    broken("parameter.echo", "nvidia", parameter(DRAFT, "exclude_input_in_output", "True"), file=DRAFT),
    broken("decoupled.loop", "ours", replace(LOOP, "decoupled: true", "decoupled: false"), file=LOOP),
    broken("decoupled.leaves", "ours", replace(DRAFT, "decoupled: true", "decoupled: false"), file=DRAFT),
    broken("decoupled.nvidia", "nvidia", replace(TARGET, "decoupled: false", "decoupled: true")),
    broken("batch.dimension", "nvidia", replace(TARGET, "max_batch_size: 4", "max_batch_size: 0")),
    broken("batch.size", "nvidia", replace(DRAFT, "max_batch_size: 4", "max_batch_size: 5"), file=DRAFT),
    broken(
        "draft.length",
        "ours",
        parameter(LOOP, "num_draft_tokens", "9"),
        file=LOOP,
        says="num_draft_tokens is 9",
    ),
    broken(
        "draft.length",
        "ours",
        parameter(LOOP, "num_draft_tokens", "1:5,4:9"),
        file=LOOP,
        says="num_draft_tokens is 1:5,4:9, the engine was built for 8",
    ),
    broken(
        "draft.length",
        "ours",
        parameter(LOOP, "num_draft_tokens", "4:5,1:3"),
        file=LOOP,
        says="rows begin at 4, 1 requests in flight",
    ),
    broken(
        "draft.rows",
        "ours",
        parameter(LOOP, "num_draft_tokens", "1:5,100:0"),
        file=LOOP,
        says="a row from 100 requests in flight on, which is never reached: max_inflight_requests is 64",
    ),
    broken(
        "draft.length",
        "ours",
        engine("target", max_draft_len=4, max_seq_len=2052),
        file=LOOP,
        says="max_draft_len is 8",
    ),
    broken(
        "limits.engine", "ours", parameter(LOOP, "max_seq_len", "4096"), file=LOOP, says="max_seq_len is 4096"
    ),
    broken("limits.engine", "ours", parameter(LOOP, "vocab_size", "4095"), file=LOOP, says="built for 4096"),
    broken(
        "logits.dtype",
        "nvidia",
        engine("target", logits_dtype="float16"),
        says="generation_logits is TYPE_FP32, the engine gives TYPE_FP16",
    ),
    broken(
        "logits.agree",
        "nvidia",
        tensor(LOOP, "generation_logits", "TYPE_FP32", "TYPE_FP16"),
        file=LOOP,
    ),
    broken("cache.reuse", "nvidia", parameter(DRAFT, "enable_kv_cache_reuse", "false"), file=DRAFT),
    broken(
        "cache.share",
        "nvidia",
        parameter(TARGET, "kv_cache_free_gpu_mem_fraction", "0.9"),
        parameter(DRAFT, "max_tokens_in_paged_kv_cache", None),
        file=DRAFT,
        says="0.9 and 0.5",
    ),
    broken("cache.size", "nvidia", parameter(TARGET, "max_tokens_in_paged_kv_cache", "1000"), says="2056"),
    broken(
        "cache.size", "ours", parameter(TARGET, "kv_cache_free_gpu_mem_fraction", "0.0"), says="leaves no"
    ),
    broken("cache.window", "nvidia", parameter(TARGET, "max_attention_window_size", "1024"), says="1024"),
    broken("engine.reachable", "nvidia", replace(TARGET, "engines/target", "engines/elsewhere")),
    broken(
        "engine.whole", "nvidia", remove("engines/draft/rank0.engine"), file=DRAFT, says="first rank0.engine"
    ),
    broken("engine.whole", "nvidia", remove("engines/target/config.json"), says="neither config.json"),
    broken("engine.whole", "nvidia", empty("engines/target/rank0.engine"), says="first rank0.engine"),
    broken("engine.whole", "ours", remove("tensorrt_llm/1/engine"), says="found no"),
    broken(
        "engine.drafts",
        "nvidia",
        engine("target", max_draft_len=0, max_seq_len=2048),
        says="takes 0 drafted tokens",
    ),
    broken(
        "engine.drafts",
        "nvidia",
        engine("target", speculative_decoding_mode=1),
        says="not built for external",
    ),
    broken(
        "engine.vocabulary",
        "nvidia",
        engine("draft", vocab_size=4160),
        file=DRAFT,
        says="4160, the target's 4096",
    ),
    broken("engine.version", "nvidia", engine("draft", version="1.1.0"), file=DRAFT, says="1.1.0"),
    broken(
        "engine.context",
        "nvidia",
        engine("draft", max_seq_len=1024),
        file=DRAFT,
        says="holds 1024 tokens, the target 2048",
    ),
    broken("engine.reuse", "nvidia", engine("draft", use_paged_context_fmha=False), file=DRAFT),
    broken(
        "engine.reuse", "nvidia", engine("draft", kv_cache_type="CONTINUOUS"), file=DRAFT, says="continuous"
    ),
    broken("engine.cache-type", "nvidia", engine("target", kv_cache_quant_algo="FP8"), says="FP8"),
    broken("ranks.gpus", "nvidia", parameter(TARGET, "gpu_device_ids", "0,1"), says="2 GPUs"),
    broken(
        "ranks.participants",
        "ours",
        parameter(TARGET, "participant_ids", "2,3"),
        says="2 MPI ranks",
        besides=("launch.world-size",),
    ),
    broken("ranks.both", "nvidia", parameter(TARGET, "participant_ids", "1"), file=DRAFT),
    broken(
        "ranks.overlap",
        "ours",
        parameter(TARGET, "participant_ids", "1"),
        file=DRAFT,
        says="rank 1",
        besides=("launch.world-size",),
    ),
    broken(
        "ranks.overlap",
        "ours",
        parameter(DRAFT, "participant_ids", "0"),
        file=DRAFT,
        says="the orchestrator's",
    ),
    broken(
        "ranks.fast-logits",
        "ours",
        parameter(DRAFT, "speculative_decoding_fast_logits", "0"),
        says="off in the other",
    ),
    broken(
        "launch.orchestrator",
        "ours",
        replace("launch.sh", "export TRTLLM_ORCHESTRATOR=1\n", ""),
        file="launch.sh",
        says="leader mode",
    ),
    broken("launch.spawn", "ours", drop_ranks, file="launch.sh", says="tensorrt_llm and tensorrt_llm_draft"),
    broken(
        "launch.world-size",
        "ours",
        replace("launch.sh", f": \\\n  -n 1 {START}", f": \\\n  -n 2 {START}"),
        file="launch.sh",
        says="starts 4 processes",
    ),
    broken(
        "unsafe.remote-code",
        "ours",
        add("start.yaml", "tokenizer:\n  trust_remote_code: true\n"),
        file="start.yaml",
    ),
    broken(
        "unsafe.remote-tokenizer",
        "nvidia",
        add("preprocessing/1/model.py", "TOKENIZER = load(folder, trust_remote_code=True)\n"),
        file="preprocessing/1/model.py",
    ),
    broken(
        "unsafe.address",
        "nvidia",
        add("start.sh", "tritonserver --model-repository=/models --http-address 0.0.0.0\n"),
        file="start.sh",
    ),
    broken(
        "unsafe.address",
        "nvidia",
        add("start.sh", 'tritonserver --model-repository=/models --http-address="${HOST:-0.0.0.0}"\n'),
        file="start.sh",
    ),
    broken(
        "unsafe.address",
        "nvidia",
        add("start.sh", "tritonserver --model-repository=/models\n"),
        file="start.sh",
    ),
    broken(
        "unsafe.shared-memory",
        "ours",
        add("Makefile", "serve:\n\tdocker run --rm --gpus all image sh /repository/launch.sh\n"),
        file="Makefile",
    ),
    broken("unsafe.outside", "ours", link_out("tensorrt_llm/1/more"), file="tensorrt_llm/1/more"),
    broken("unsafe.outside", "nvidia", parameter(TARGET, "lora_prefetch_dir", "../lora"), says="../lora"),
)


@pytest.mark.parametrize("case", BREAKS, ids=str)
def test_a_repository_that_is_wrong_in_one_way_has_that_finding(
    case: Break, right: Path, tmp_path: Path
) -> None:
    repository = shutil.copytree(right / case.layout, tmp_path / "repo")
    for edit in case.edits:
        edit(repository)
    found = lint(repository)
    assert {finding.rule for finding in found} == {case.rule} | case.besides, found
    mine = [finding for finding in found if finding.rule == case.rule]
    assert any(finding.file == case.file and case.message in finding.message for finding in mine), mine


def test_a_table_beyond_the_engine_is_not_to_become_a_number(right: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(right / "ours", tmp_path / "repo")
    parameter(LOOP, "num_draft_tokens", "1:9,4:0")(repository)
    (finding,) = lint(repository)
    assert finding.repair == "set no row beyond 8"


@pytest.mark.parametrize("layout", ["nvidia", "ours"])
def test_a_right_repository_has_no_finding(right: Path, layout: str) -> None:
    assert lint(right / layout) == ()


def test_every_rule_has_a_repository_that_breaks_it() -> None:
    assert {case.rule for case in BREAKS} == IDS


def test_rules_have_ids_of_their_own_and_a_sentence() -> None:
    assert len(IDS) == len(RULES)
    assert all(re.fullmatch(r"[a-z]+\.[a-z-]+", rule.id) and rule.sentence.endswith(".") for rule in RULES)


def test_a_repository_for_the_cpu_runtime_has_no_finding(built_pair: EnginePair, tmp_path: Path) -> None:
    assert lint(write_repository(built_pair, tmp_path / "repo")) == ()


@pytest.mark.parametrize(
    ("ranks", "launch"),
    [
        ((1, 1), LaunchOptions()),
        ((2, 1), LaunchOptions()),
        ((1, 1), LaunchOptions(target_gpus=(1,))),
        ((4, 2), LaunchOptions(fast_logits=True)),
        ((2, 2), LaunchOptions(mode="ranks")),
    ],
)
def test_however_its_engines_are_placed_our_repository_has_no_finding(
    tokenizer: Path, tmp_path: Path, ranks: tuple[int, int], launch: LaunchOptions
) -> None:
    pair = write_pair(tmp_path / "pair", tokenizer, target_tp=ranks[0], draft_tp=ranks[1])
    repository = write_repository(pair, tmp_path / "repo", RepositoryOptions(launch=launch))
    assert lint(repository) == ()


def test_a_repository_for_the_cpu_runtime_needs_its_engines(built_pair: EnginePair, tmp_path: Path) -> None:
    repository = write_repository(built_pair, tmp_path / "repo")
    shutil.rmtree(repository / "tensorrt_llm_draft" / "1" / "engine")
    (found,) = lint(repository)
    assert (found.rule, found.file) == ("engine.whole", DRAFT)


def test_shares_of_a_gpu_may_add_up_to_more_where_tokens_are_limited(right: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(right / "nvidia", tmp_path / "repo")
    for file in (TARGET, DRAFT):
        parameter(file, "kv_cache_free_gpu_mem_fraction", "0.9")(repository)
        parameter(file, "max_tokens_in_paged_kv_cache", "5000")(repository)
    assert lint(repository) == ()


def test_float16_logits_are_right_where_the_engine_gives_them(tokenizer: Path, tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pair", tokenizer, logits_dtype="float16")
    assert lint(write_repository(pair, tmp_path / "repo")) == ()
    for role in ("target", "draft"):
        write_engine(tmp_path / "engines" / role, target=role == "target", logits_dtype="float16")
    assert lint(write_layout(tmp_path / "nvidia", tmp_path / "engines", tokenizer, logits="FP16")) == ()


def test_models_over_the_llm_api_are_not_taken_for_engines(tmp_path: Path) -> None:
    """NVIDIA's llmapi template: TensorRT-LLM drafts itself, and the model has other tensors."""
    version = tmp_path / "tensorrt_llm" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("# A double.\n")
    (version / "model.yaml").write_text("model: org/name\nbackend: pytorch\n")
    (version.parent / "config.pbtxt").write_text(
        'backend: "python"\nmax_batch_size: 0\n'
        'input [{ name: "text_input" data_type: TYPE_STRING dims: [ -1 ] }]\n'
        'output [{ name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }]\n'
    )
    assert lint(tmp_path) == ()
    add("tensorrt_llm/1/model.yaml", "trust_remote_code: true\n")(tmp_path)
    assert [finding.rule for finding in lint(tmp_path)] == ["unsafe.remote-code"]


@pytest.mark.parametrize(
    "text", ["trust_remote_code: false", "# trust_remote_code: true", '"trust_remote_code": false']
)
def test_remote_code_that_is_off_is_no_finding(right: Path, tmp_path: Path, text: str) -> None:
    repository = shutil.copytree(right / "ours", tmp_path / "repo")
    add("start.yaml", f"{text}\n")(repository)
    assert lint(repository) == ()


def test_findings_name_the_line(right: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(right / "nvidia", tmp_path / "repo")
    edits = (
        (LOOP, '"tensorrt_llm_draft"', '"tensorrt_llm_drafts"', "model.reference"),
        (TARGET, "decoupled: false", "decoupled: true", "decoupled.nvidia"),
        (DRAFT, 'string_value: "/opt/tritonserver', 'string_value: "/opt/../tritonserver', "unsafe.outside"),
        ("ensemble/config.pbtxt", 'key: "TOKENS_BATCH"', 'key: "TOKENS"', "ensemble.tensor"),
    )
    for file, old, new, _ in edits:
        replace(file, old, new)(repository)
    add(
        "start.sh",
        "# starts it\n\nexec tritonserver \\\n  --model-repository=. \\\n  --http-address=0.0.0.0\n",
    )(repository)
    found = {(f.rule, f.file): f.line for f in lint(repository)}
    for file, _, new, rule in edits:
        line = found[rule, file]
        assert line is not None
        lines = (repository / file).read_text().splitlines()
        # A parameter is named by the line of its key, its value stands below.
        assert new in "\n".join(lines[line - 1 : line + 2]), rule
    assert found["unsafe.address", "start.sh"] == 5


def test_a_broken_text_is_named_with_the_line_that_triton_would_name(right: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(right / "nvidia", tmp_path / "repo")
    replace(TARGET, "decoupled: false", "decoupled: maybe")(repository)
    (finding,) = lint(repository)
    assert (finding.rule, finding.line) == ("config.readable", 6)


def test_placeholders_in_comments_are_none(right: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(right / "nvidia", tmp_path / "repo")
    replace(TARGET, "decoupled: false", "decoupled: false # ${decoupled_mode}")(repository)
    assert lint(repository) == ()


def test_a_layout_as_the_template_leaves_it_says_what_to_fill_in(right: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(right / "nvidia", tmp_path / "repo")
    for old, name in (
        ("max_batch_size: 4", "triton_max_batch_size"),
        ("decoupled: false", "decoupled_mode"),
        ("count: 1", "instance_count"),
    ):
        replace("preprocessing/config.pbtxt", old, f"{old.split(':')[0]}: ${{{name}}}")(repository)
    substitute(
        "preprocessing/config.pbtxt",
        r'string_value: "[^"]*tokenizer[^"]*"',
        'string_value: "${tokenizer_dir}"',
    )(repository)
    found = [(f.rule, f.message.split()[0]) for f in lint(repository)]
    names = ("triton_max_batch_size", "decoupled_mode", "instance_count")
    assert [("config.placeholder", f"${{{name}}}") for name in names] == [
        f for f in found if "placeholder" in f[0]
    ]
    assert ("config.unset", "${tokenizer_dir}") in found


def test_nvidias_own_start_script_is_understood(right: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(right / "nvidia", tmp_path / "repo")
    for file, rank in ((TARGET, "1"), (DRAFT, "2")):
        parameter(file, "participant_ids", rank)(repository)
    start = (
        "python3 scripts/launch_triton_server.py --model_repo=repo --multi-model --disable-spawn-processes"
    )
    add("start.sh", f"{start} --world_size=3\n")(repository)
    assert {f.rule for f in lint(repository)} == {"unsafe.address"}
    replace("start.sh", "--world_size=3", "--world_size=2")(repository)
    assert {f.rule for f in lint(repository)} == {"unsafe.address", "launch.world-size"}
    replace("start.sh", "--multi-model --disable-spawn-processes", "")(repository)
    assert {f.rule for f in lint(repository)} == {"unsafe.address", "launch.orchestrator"}


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_what_is_no_repository_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RepositoryError, match=f"{name}: found no .*expected a Triton model repository"):
        lint(tmp_path / name)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_configuration_that_is_no_file_is_an_error_and_not_waited_for(
    right: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    repository = shutil.copytree(right / "ours", tmp_path / "repo")
    (repository / TARGET).unlink()
    make(repository / TARGET)
    with pytest.raises(RepositoryError, match=r"config\.pbtxt: is no regular file"):
        lint(repository)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not as it was written with the engine"),
        ('{"pretrained_config": {}, "build_config": {"max_seq_len": NaN}}', "not as it was written"),
        ('{"pretrained_config": {}, "build_config": {}}', "has no 'max_seq_len'"),
    ],
)
def test_what_is_wrong_with_an_engines_file_is_said_in_words(
    right: Path, tmp_path: Path, text: str, message: str
) -> None:
    repository = shutil.copytree(right / "ours", tmp_path / "repo")
    (repository / "tensorrt_llm/1/engine/config.json").write_text(text)
    (found,) = (finding for finding in lint(repository) if finding.rule == "engine.whole")
    assert message in found.message
    assert "Error" not in found.message


def test_a_finding_reads_as_a_line_with_what_to_do(right: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(right / "nvidia", tmp_path / "repo")
    parameter(TARGET, "max_beam_width", "4")(repository)
    (finding,) = lint(repository)
    expected = "error parameter.beams: max_beam_width is 4, drafted tokens go with 1 only; set it to 1"
    assert str(finding) == f"{TARGET}:{finding.line}: {expected}"


def test_the_folder_of_one_model_is_refused_with_its_repository(right: Path) -> None:
    with pytest.raises(RepositoryError, match=f"tensorrt_llm: is one model, .*; give {right / 'ours'}$"):
        lint(right / "ours" / "tensorrt_llm")
