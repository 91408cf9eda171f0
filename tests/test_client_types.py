"""A program that uses the client passes mypy in strict mode, and a wrong one does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import trtspec
import trtspec.client

PROGRAM = """
import asyncio
from trtspec.client import AsyncClient, Client, Delta, Generation, InferRequest, MockTransport
from trtspec.client import Options, Retry, Tls

options: Options = {"max_tokens": 3, "num_draft_tokens": "auto", "stop_words": ["a"]}
with Client("grpcs://host", api_key="k", tls=Tls(ca="ca.pem"), retry=Retry(attempts=2)) as client:
    answer: Generation = client.generate("x", timeout_s=1.0, **options)
    client.chat([{"role": "user", "content": "x"}], seed=1)
    ids: tuple[int, ...] = client.tokenize("x")
    many: list[Generation] = client.generate_many(["x", [1, 2]], concurrency=2, on_answer=print)
    with client.stream(ids) as stream:
        text = "".join(delta.text for delta in stream)
        speculation = stream.result.speculation
    if speculation is not None and client.health().canary:
        rate: float = speculation.acceptance + client.metrics().total("nv_inference_count", model="m")


async def main() -> None:
    async with AsyncClient("http://host") as client, client.stream("x", temperature=0.5) as stream:
        deltas: list[Delta] = [delta async for delta in stream]
        whole: Generation = await stream.result
        await client.chat([{"role": "user", "content": "x"}])


def reply(request: InferRequest) -> list[Delta]:
    return [Delta("x")]


asyncio.run(main())
Client(transport=MockTransport(reply))
"""
MISTAKES = """
from trtspec.client import Client

client = Client()
client.generate("x", max_token=3)
client.generate("x", 3)
client.generate("x", temperature="hot")
client.chat("x")
number: int = client.generate("x").text
"""


def mypy(folder: Path, program: str) -> list[str]:
    """Return what mypy says to a program."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir=cache"]
    run = subprocess.run([*command, "program.py"], cwd=folder, capture_output=True, text=True, check=False)
    return run.stdout.splitlines()


def test_programs_that_use_the_client_are_checked(tmp_path: Path) -> None:
    # As pip lays the package out.
    package = tmp_path / "trtspec"
    package.mkdir()
    shared = Path(str(trtspec.__file__)).parent
    for file in (*shared.glob("*.py"), shared / "py.typed"):
        (package / file.name).symlink_to(file)
    (package / "client").symlink_to(Path(str(trtspec.client.__file__)).parent)
    assert mypy(tmp_path, PROGRAM) == ["Success: no issues found in 1 source file"]
    errors = [line for line in mypy(tmp_path, MISTAKES) if "error:" in line]
    assert {int(line.split(":")[1]) for line in errors} == {5, 6, 7, 8, 9}
