"""`trtspec check`, as it is typed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.cli import main


@pytest.fixture
def mismatched(demo_pair: Path, tmp_path: Path) -> tuple[str, str]:
    """The demo pair with two ids of the draft's tokenizer exchanged."""
    draft = tmp_path / "draft"
    shutil.copytree(demo_pair / "draft", draft)
    content = json.loads((draft / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    one, other = list(vocab)[1000], list(vocab)[2000]
    vocab[one], vocab[other] = vocab[other], vocab[one]
    (draft / "tokenizer.json").write_text(json.dumps(content))
    return str(demo_pair / "target"), str(draft)


def test_a_pair_that_can_be_built_is_shown_as_a_table_with_its_cost(demo_pair, capsys):
    main(["check", str(demo_pair / "target"), str(demo_pair / "draft")])
    shown = " ".join(capsys.readouterr().out.split())
    assert "target: target" in shown
    assert "12.9 M" in shown
    assert "This pair can be built. A draft step costs about 0.05 of a target step" in shown
    assert "times at 80% acceptance (γ = 8)" in shown


def test_a_pair_that_cannot_be_built_exits_with_3_and_shows_the_finding(mismatched, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["check", *mismatched])
    assert stopped.value.code == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "error vocab.ids: draft against target: ids that mean different text to the two models: 2; e.g. 1000"
        in shown
    )
    assert "This pair cannot be built: 1 error." in shown


def test_json_is_one_object_and_nothing_else(mismatched, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["check", *mismatched, "--json"])
    assert stopped.value.code == 3
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["findings"][0]["id"] == "vocab.ids"
    assert report["differences"][0]["ids"] == [[1000, 1000], [2000, 2000]]


def test_a_tokenizers_markup_is_printed_as_it_is(demo_pair, tmp_path, capsys):
    """Square brackets are rich's own markup; a token may be made of them."""
    for side in ("target", "draft"):
        shutil.copytree(demo_pair / side, tmp_path / side)
    file = tmp_path / "draft/tokenizer.json"
    content = json.loads(file.read_text())
    content["added_tokens"][2]["content"] = "[bold]"
    pieces = [{"SpecialToken": {"id": "[bold]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    content["post_processor"] = {"type": "TemplateProcessing", "single": pieces}
    file.write_text(json.dumps(content))
    main(["check", str(tmp_path / "target"), str(tmp_path / "draft")])
    shown = " ".join(capsys.readouterr().out.split())
    assert "'[bold]' in the draft" in shown
    assert "│ put around a text │ nothing │ [bold] … │" in shown


def test_a_folder_that_is_no_checkpoint_is_our_error(tmp_path, demo_pair, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(tmp_path), str(demo_pair / "draft")])
    assert stopped.value.code == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"trtspec: {tmp_path / 'config.json'}: missing")


def test_a_missing_argument_is_a_usage_error(demo_pair, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(demo_pair / "draft")])
    assert stopped.value.code == 2
    assert "Missing argument 'DRAFT'" in capsys.readouterr().err


def test_help_has_an_example_and_the_exit_codes(capsys):
    main(["check", "--help"])
    shown = capsys.readouterr().out
    assert "trtspec check models/Llama-3.1-70B-Instruct models/Llama-3.2-1B-Instruct" in shown
    assert "Exit codes: 0 the pair can be built, 3 it cannot." in shown


def test_checking_imports_no_model_code(demo_pair):
    code = (
        "import sys; from trtspec.cli import main; "
        f"main(['check', {str(demo_pair / 'target')!r}, {str(demo_pair / 'draft')!r}, '--json']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'tokenizers')))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
    )
