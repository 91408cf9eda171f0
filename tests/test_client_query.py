"""`trtspec query`, as a process of its own, against a scripted server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from scripted_server import Asked, Fault, ScriptedServer, Step, endless, last

QUERY = [sys.executable, "-m", "trtspec", "query"]


def query(*args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> tuple[int, bytes, str]:
    """Return exit code, stdout and stderr."""
    done = subprocess.run([*QUERY, *args], input=stdin, capture_output=True, env=env, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr.decode()


def talk(asked: Asked) -> Iterator[Step]:
    yield Step("Grüße, ", [1, 2])
    yield last("Welt 🌍", [3], prompt_tokens=2, tokens=3)


def test_the_answer_is_printed_and_options_are_sent() -> None:
    args = ["--max-tokens", "5", "--num-draft-tokens", "0", "--stop", "a", "--stop", "b"]
    args += ["--temperature", "0.5", "--seed", "7"]
    with ScriptedServer(talk) as server:
        code, out, err = query("hello", "--url", server.url, *args)
    assert (code, out.decode(), err) == (0, "Grüße, Welt 🌍\n", "")
    values = server.asked[0].values
    assert (values["text_input"], values["stop_words"]) == ([b"hello"], [b"a", b"b"])
    assert (values["max_tokens"], values["num_draft_tokens"]) == ([5], [0])
    assert (values["temperature"], values["seed"], values["stream"]) == ([0.5], [7], [True])


def test_the_answer_is_printed_as_it_comes() -> None:
    with (
        ScriptedServer(endless) as server,
        subprocess.Popen([*QUERY, "x", "--url", server.url], stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout
        assert process.stdout.read(6) == b"0 1 2 "
        process.terminate()


def test_json_is_one_object_with_everything() -> None:
    with ScriptedServer(talk) as server:
        code, out, err = query("hello", "--url", server.url, "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert (answer["text"], answer["token_ids"], answer["finish_reason"]) == (
        "Grüße, Welt 🌍",
        [1, 2, 3],
        "stop",
    )
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 3}
    assert answer["speculation"] == {
        "rounds": 3,
        "proposed": 8,
        "accepted": 6,
        "accepted_per_position": [3, 2, 1],
        "proposed_per_position": [3, 3, 2],
        "off_reason": "",
        "acceptance": 0.75,
        "tokens_per_target_call": 3.0,
    }


def test_stats_go_to_stderr() -> None:
    with ScriptedServer(talk) as server:
        code, out, err = query("hello", "--url", server.url, "--stats")
    assert (code, out.decode()) == (0, "Grüße, Welt 🌍\n")
    assert err == (
        "finish: stop; 2 prompt and 3 new tokens; "
        "3 rounds, 6 of 8 draft tokens kept (75%), 3.00 tokens a target call\n"
    )


def test_what_a_server_says_does_not_steer_the_terminal() -> None:
    def hostile(asked: Asked) -> Iterator[Step]:
        step = last("x", [3], prompt_tokens=2, tokens=1)
        yield replace(step, more={**step.more, "speculation_off_reason": "\x1b[2Jgone"})

    with ScriptedServer(hostile) as server:
        _, _, err = query("hello", "--url", server.url, "--stats")
    assert err.endswith("; drafting ended: \\x1b[2Jgone\n")


def test_a_dash_reads_the_prompt_from_stdin_byte_for_byte() -> None:
    with ScriptedServer(talk) as server:
        code, _, _ = query("-", "--url", server.url, stdin="ß\r\n\n".encode())
    assert (code, server.asked[0].values["text_input"]) == (0, ["ß\r\n\n".encode()])


def test_stdin_that_is_not_utf8_is_one_clear_line() -> None:
    code, out, err = query("-", stdin=b"ab\xff")
    assert (code, out) == (1, b"")
    assert err == (
        "trtspec: stdin: found byte 0xff at offset 2, expected UTF-8 text; "
        "convert it first, for example with iconv\n"
    )


def test_a_terminal_that_cannot_show_a_character_gets_a_question_mark() -> None:
    with ScriptedServer(talk) as server:
        code, out, err = query("x", "--url", server.url, env={"PYTHONIOENCODING": "latin-1"})
    assert (code, out, err) == (0, "Grüße, Welt ?\n".encode("latin-1"), "")


def test_a_refusal_is_one_line_and_exit_code_1() -> None:
    with ScriptedServer(
        lambda _: [Fault("max_tokens is 0; it must be at least 1", "INVALID_ARGUMENT")]
    ) as server:
        code, out, err = query("x", "--url", server.url, "--max-tokens", "0")
    assert (code, out) == (1, b"")
    request = server.asked[0].id
    assert (
        err == f"trtspec: {server.url}: refused: max_tokens is 0; it must be at least 1 (request {request})\n"
    )


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["x", "--seed", "one"],
        ["x", "--timeout", "0"],
        ["x", "--timeout", "inf"],
        ["x", "--timeout", "nan"],
        ["x", "y"],
    ],
)
def test_wrong_usage_is_exit_code_2(args: list[str]) -> None:
    code, out, err = query(*args)
    assert (code, out) == (2, b"")
    assert "query [OPTIONS] PROMPT" in err


def test_ctrl_c_ends_the_servers_work_and_says_so_in_one_line() -> None:
    with (
        ScriptedServer(endless) as server,
        subprocess.Popen(
            [*QUERY, "x", "--url", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout
        process.stdout.read(2)
        process.send_signal(signal.SIGINT)
        assert process.stderr
        # click first ends the line that the terminal's ^C stands in.
        assert process.stderr.read() == b"\ntrtspec: interrupted\n"
        assert process.wait(20) == 130
        assert server.asked[0].was_cancelled()


def test_a_reader_that_goes_away_ends_the_servers_work_without_a_word() -> None:
    with (
        ScriptedServer(endless) as server,
        subprocess.Popen(
            [*QUERY, "x", "--url", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout
        process.stdout.read(2)
        process.stdout.close()
        assert process.stderr
        assert process.stderr.read() == b""
        assert process.wait(20) == 1
        assert server.asked[0].was_cancelled()
