"""recipe.toml: what it may say, what it overrides, and the recipes of known pairs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_models import PUBLISHED

from trtspec.cli import main
from trtspec.engines.memory.decoder import decoder_of
from trtspec.engines.memory.gpus import find_gpu
from trtspec.engines.memory.plan import plan_memory
from trtspec.engines.memory.pools import Deployment
from trtspec.engines.memory.ranks import Engine, Limits
from trtspec.engines.pair import open_pair
from trtspec.errors import RecipeError
from trtspec.recipe.file import Recipe, parse_recipe, read_recipe
from trtspec.recipe.known import PAIRS, KnownPair, known_pair
from trtspec.recipe.schema import SECTIONS, parameters
from trtspec.recipe.text import recipe_of, render, render_known

names = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)


def stopped(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@names
def test_a_written_recipe_reads_back_as_what_it_was_written_from(pair: KnownPair):
    assert parse_recipe(render_known(pair), "written") == recipe_of(pair)


@names
def test_every_key_of_both_commands_is_there_with_one_line_about_it(pair: KnownPair):
    text = render_known(pair)
    for section in SECTIONS:
        body = text.partition(f"\n[{section}]\n")[2].partition("\n\n")[0].splitlines()
        comments, entries = body[::2], body[1::2]
        assert all(re.match(r"# \S", line) for line in comments)
        assert [re.sub(r"^# ", "", line).partition(" = ")[0] for line in entries] == list(parameters(section))


@names
def test_what_differs_between_pairs_is_said(pair: KnownPair):
    text = render_known(pair)
    assert pair.target.licence in text
    assert ("152064" in text and "151936" in text) == pair.name.startswith("qwen2.5")
    assert ("gated" in text) == ("meta-llama" in text)


SIZES = {
    "meta-llama/Llama-3.3-70B-Instruct": "Llama-3.1-70B",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "Llama-3.1-70B",
    "meta-llama/Llama-3.2-1B-Instruct": "Llama-3.2-1B",
    "Qwen/Qwen2.5-7B-Instruct": "Qwen2.5-7B",
    "Qwen/Qwen2.5-14B-Instruct": "Qwen2.5-14B",
    "Qwen/Qwen2.5-1.5B-Instruct": "Qwen2.5-1.5B",
    "Qwen/Qwen3-32B": "Qwen3-32B",
    "Qwen/Qwen3-0.6B": "Qwen3-0.6B",
}


@names
def test_the_gpus_that_a_recipe_names_hold_it(pair: KnownPair):
    count, name = pair.gpus.split(" × ")
    assert int(count) == pair.build["tp"]
    models = [SIZES[model.hub_id] for model in (pair.target, pair.draft)]
    target, draft = (
        Engine(decoder=decoder_of(PUBLISHED[model][0], model), tp=int(count)) for model in models
    )
    limits = Limits(max_seq_len=pair.build["max_seq_len"])
    plan = plan_memory(Deployment(target=target, draft=draft, gpu=find_gpu(name), limits=limits))
    assert plan.concurrency[-1].served >= 1


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "target": st.text(),
            "max_kl": st.floats(min_value=0, allow_nan=False, allow_infinity=False),
            "tp": st.integers(1, 1024),
            "runtime": st.sampled_from(["cpu", "tensorrt"]),
        },
    ),
    st.fixed_dictionaries({}, optional={"exclude_input_in_output": st.booleans()}),
)
def test_whatever_a_recipe_says_survives_being_written(build: dict[str, Any], repo: dict[str, Any]):
    recipe = Recipe({"build": build, "repo": repo})
    assert parse_recipe(render(recipe, ["made up"]), "written") == recipe


def test_numbers_may_be_written_as_numbers_where_an_option_takes_them_or_words():
    for value in ("32", '"32"'):
        parse_recipe(f"[build]\ntokens_per_block = {value}", "r.toml")
    for value in ("5", '"auto"'):
        parse_recipe(f"[repo]\nnum_draft_tokens = {value}", "r.toml")
    with pytest.raises(RecipeError, match=r"tokens_per_block is 33, expected 16, 32, 64, 128,"):
        parse_recipe("[build]\ntokens_per_block = 33", "r.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[build]\nmax_sq_len = 1", r"r\.toml: build\.max_sq_len is unknown; did you mean max_seq_len\?$"),
        ("[build]\nmax-seq-len = 1", r"build\.max-seq-len is unknown; did you mean max_seq_len\?"),
        ("[build]\nzzz = 1", r"build\.zzz is unknown; known are target, draft, output, runtime"),
        ("[bild]\ntp = 1", r"bild is no section; did you mean build\?"),
        ("tp = 1", r"tp is no section; put it under \[build\]"),
        ("build = 3", r"build is a value, expected a section \[build\]"),
        ("[build]\ntp = 0", r"build\.tp is 0, expected greater than or equal to 1"),
        ('[build]\ntp = "2"', r"build\.tp is '2', expected an integer"),
        ("[build]\ntp = true", r"build\.tp is True, expected an integer"),
        ('[build]\nruntime = "gpu"', r"build\.runtime is 'gpu', expected 'cpu'"),
        ('[repo]\nexclude_input_in_output = "no"', r"repo\.exclude_input_in_output is 'no', expected a bool"),
        (
            "[repo]\nnum_draft_tokens = true",
            r"^r\.toml: repo\.num_draft_tokens is True, expected a num[^;]*$",
        ),
        (
            '[repo]\nnum_draft_tokens = ["1:5"]',
            r"num_draft_tokens is \['1:5'\], expected a number or a string$",
        ),
        (
            '[repo]\nnum_draft_tokens = "4:1"',
            r"^r\.toml: repo\.num_draft_tokens: found '4:1', whose rows begin",
        ),
        (
            "[repo]\nnum_draft_tokens = 5.0",
            r"repo\.num_draft_tokens: found '5\.0', expected a number of draft",
        ),
        ("[build]\njson = true", r"build\.json is unknown"),
        ("[build]\nrecipe = 'x'", r"build\.recipe is unknown"),
        ("[build\n", r"r\.toml: not TOML: .*line 1"),
    ],
)
def test_a_recipe_that_is_wrong_is_refused_with_its_key(text: str, message: str):
    with pytest.raises(RecipeError, match=message):
        parse_recipe(text, "r.toml")


def test_all_faults_are_said_at_once():
    with pytest.raises(RecipeError) as refused:
        parse_recipe("[build]\ntp = 0\nmax_batch = 3\n[repo]\npairs = 'x'", "r.toml")
    assert str(refused.value) == (
        "r.toml: build.tp is 0, expected greater than or equal to 1; "
        "build.max_batch is unknown; did you mean max_batch_size?; "
        "repo.pairs is unknown; did you mean pair?"
    )


def test_a_file_that_cannot_be_read_is_our_error(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"r\.toml: cannot be read \(No such file or directory\); `trtspec"):
        read_recipe(tmp_path / "r.toml")
    (tmp_path / "r.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match=r"r\.toml: not UTF-8 text \(invalid start byte\)"):
        read_recipe(tmp_path / "r.toml")


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path: Path):
    (tmp_path / "r.toml").write_text("[build]\ntp = 2\n", "utf-8-sig")
    assert read_recipe(tmp_path / "r.toml").section("build") == {"tp": 2}


def test_build_and_repo_take_a_recipe_and_flags_override_it(demo_pair, tmp_path, capsys):
    recipe = tmp_path / "recipe.toml"
    said = {
        "target": str(demo_pair / "target"),
        "draft": str(demo_pair / "draft"),
        "output": str(tmp_path / "pair"),
        "max_batch_size": 3,
        "max_draft_len": 4,
        "tokens_per_block": 32,
        "max_kl": 0.5,
        "fused_mlp": True,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in said.items()]
    repo = [f"pair = {json.dumps(said['output'])}", "num_draft_tokens = 2", "exclude_input_in_output = false"]
    recipe.write_text("\n".join(["[build]", *lines, "[repo]", *repo]))
    main(["build", "--recipe", str(recipe), "--max-draft-len", "6"])
    settings = open_pair(tmp_path / "pair").manifest.target.settings
    assert (settings.max_batch_size, settings.max_draft_len) == (3, 6)
    capsys.readouterr()
    main(["repo", "--recipe", str(recipe), "--output", str(tmp_path / "repo")])
    public = (tmp_path / "repo/tensorrt_llm_bls/config.pbtxt").read_text()
    assert re.search(r'key: "num_draft_tokens"\s+value \{\s+string_value: "2"', public)


@pytest.mark.parametrize(
    ("said", "flags", "kinds"),
    [
        ('quantization = "fp8"', ["--draft-quantization", "none"], ["FP8", None]),
        ('target_quantization = "fp8"', ["--quantization", "none"], [None, None]),
        ("container = true", ["--script", "SCRIPT"], [None, None]),
    ],
)
def test_a_flag_overrides_what_the_recipe_says_and_it_excludes(
    demo_pair, tmp_path, capsys, said, flags, kinds
):
    recipe = tmp_path / "recipe.toml"
    places = {role: str(demo_pair / role) for role in ("target", "draft")} | {
        "output": str(tmp_path / "pair")
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in places.items()]
    recipe.write_text("\n".join(["[build]", *lines, 'runtime = "tensorrt"', said]))
    script = str(tmp_path / "compile.sh")
    flags = [script if flag == "SCRIPT" else flag for flag in flags]
    main(["build", "--recipe", str(recipe), "--dry-run", "--json", *flags])
    engines = json.loads(capsys.readouterr().out)["engines"]
    assert [engine["quantization"] for engine in engines] == kinds
    assert all(engine["command"][0] == "trtllm-build" for engine in engines)


def test_a_flag_for_the_store_overrides_what_the_recipe_says_of_it(demo_pair, tmp_path):
    store, recipe = tmp_path / "store", tmp_path / "recipe.toml"
    models = f'target = "{demo_pair / "target"}"\ndraft = "{demo_pair / "draft"}"\nfingerprint = false\n'
    recipe.write_text(f'[build]\n{models}cache = "{store}"\n')
    main(["build", "--recipe", str(recipe), "--output", str(tmp_path / "one"), "--no-cache"])
    assert not store.exists()
    recipe.write_text(f"[build]\n{models}no_cache = true\n")
    main(["build", "--recipe", str(recipe), "--output", str(tmp_path / "two"), "--cache", str(store)])
    assert store.is_dir()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ('cache = "x"\nno_cache = true', "--cache names a store, --no-cache wants none"),
        ('cache = ""', "is empty, expected a folder"),
    ],
)
def test_a_recipe_that_names_no_store_is_refused(tmp_path, capsys, said, message):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"[build]\n{said}\n")
    arguments = ["build", "no-target", "no-draft", "--output", "x", "--recipe", str(recipe)]
    assert stopped(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_recipe_stops_the_command_before_it_does_anything(tmp_path, capsys):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[repo]\npear = 1\n[build]\n")
    assert stopped(["build", "--recipe", str(recipe)]) == 1
    assert capsys.readouterr().err == f"trtspec: {recipe}: repo.pear is unknown; did you mean pair?\n"


def test_what_neither_recipe_nor_flags_give_is_missing(tmp_path, capsys):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[build]\ndraft = "a"\n')
    assert stopped(["build", "--recipe", str(recipe)]) == 2
    assert "Missing argument 'TARGET'" in capsys.readouterr().err


def test_the_command_writes_the_recipe_to_the_terminal_or_a_new_file(tmp_path, capsys):
    main(["recipe", "qwen3-32b"])
    assert capsys.readouterr().out == render_known(known_pair("qwen3-32b"))
    file = tmp_path / "recipe.toml"
    main(["recipe", "qwen3-32b", "--output", str(file)])
    assert file.read_text() == render_known(known_pair("qwen3-32b"))
    capsys.readouterr()
    assert stopped(["recipe", "qwen3-32b", "--output", str(file)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert stopped(["recipe", "qwen3-32b", "--output", str(tmp_path / "no/recipe.toml")]) == 1


def test_the_known_pairs_are_listed(capsys):
    main(["recipe", "--list"])
    shown = capsys.readouterr().out
    assert all(pair.name in shown and pair.draft.hub_id in shown for pair in PAIRS)
    main(["recipe", "--list", "--json"])
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [pair.name for pair in PAIRS]
    main(["recipe", "qwen2.5-7b", "--json"])
    assert json.loads(capsys.readouterr().out)["build"]["target"] == "models/Qwen2.5-7B-Instruct"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["recipe"], 2, "give a NAME or --list"),
        (["recipe", "x", "--list"], 2, "give a NAME or --list"),
        (["recipe", "--list", "--output", "x"], 2, "--output is for the recipe of a NAME"),
        (["recipe", "qwen2.5-7"], 1, "qwen2.5-7: no recipe of that name; did you mean qwen2.5-7b?"),
        (["recipe", "zzzz"], 1, "zzzz: no recipe of that name; known are llama-3.3-70b, qwen2.5-7b"),
    ],
)
def test_wrong_usage_and_unknown_names_have_their_codes(capsys, arguments, code, message):
    assert stopped(arguments) == code
    assert message in capsys.readouterr().err


def test_help_has_an_example(capsys):
    main(["recipe", "--help"])
    assert "trtspec recipe llama-3.3-70b --output llama.toml" in capsys.readouterr().out
