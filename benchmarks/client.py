"""What the client costs over bare tritonclient, per streamed response.

    python benchmarks/client.py [--runs 7] [--answers 20] [--chunks 400] [--json]

A scripted gRPC server in a process of its own sends answers of many small responses as fast as it
can, each a text and a token id, as our public model's. Bare tritonclient streams them with one call
an answer, and turns text and ids into Python values, which any application does. Each run asks both
in turn, so that a busy machine is busy for both; ratios are of neighbours in time, shown as medians
over the runs, with the quartiles. Wall time has the server's share in it, processor time has not.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import queue
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio

from trtspec.client import AsyncClient, Client

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

MODEL = "tensorrt_llm_bls"


def serve(chunks: int, connection: Connection) -> None:
    from scripted_server import Asked, ScriptedServer, Step, last

    def script(asked: Asked) -> Iterator[Step]:
        yield from (Step(" word", [number]) for number in range(chunks))
        yield last()

    with ScriptedServer(script) as server:
        connection.send(server.url)
        connection.recv()


def inputs() -> list[Any]:
    values = (
        ("text_input", "BYTES", [[b"x"]], object),
        ("max_tokens", "INT32", [[128]], np.int32),
        ("stream", "BOOL", [[True]], np.bool_),
    )
    tensors = []
    for name, datatype, value, dtype in values:
        array = np.array(value, dtype)
        tensors.append(tritonclient.grpc.InferInput(name, array.shape, datatype))
        tensors[-1].set_data_from_numpy(array)
    return tensors


def read(result: Any) -> bool:
    """Return whether this is the last response, after reading what it says."""
    text, ids = result.as_numpy("text_output"), result.as_numpy("output_ids")
    if text is not None:
        "".join(piece.decode() for piece in text.flat)
        tuple(ids.ravel().tolist())
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def bare(url: str, answers: int) -> None:
    with tritonclient.grpc.InferenceServerClient(url) as client:
        for _ in range(answers):
            results: queue.SimpleQueue[Any] = queue.SimpleQueue()
            client.start_stream(lambda result, error, put=results.put: put(result))
            client.async_stream_infer(MODEL, inputs(), enable_empty_final_response=True)
            while not read(results.get()):
                pass
            client.stop_stream()


def ours(url: str, answers: int) -> None:
    with Client(url) as client:
        for _ in range(answers):
            with client.stream("x") as stream:
                for _ in stream:
                    pass


async def bare_async(url: str, answers: int) -> None:
    async with tritonclient.grpc.aio.InferenceServerClient(url) as client:
        for _ in range(answers):

            async def requests() -> Any:
                yield {"model_name": MODEL, "inputs": inputs(), "enable_empty_final_response": True}

            async for result, _ in client.stream_infer(requests()):
                read(result)


async def ours_async(url: str, answers: int) -> None:
    async with AsyncClient(url) as client:
        for _ in range(answers):
            async with client.stream("x") as stream:
                async for _ in stream:
                    pass


WAYS: dict[str, tuple[Callable[[str, int], Any], Callable[[str, int], Any]]] = {
    "Client": (bare, ours),
    "AsyncClient": (
        lambda url, answers: asyncio.run(bare_async(url, answers)),
        lambda url, answers: asyncio.run(ours_async(url, answers)),
    ),
}


def cost(work: Callable[[str, int], Any], url: str, answers: int) -> tuple[float, float]:
    """Return wall seconds, and processor seconds of this process, which the server is no part of."""
    started, used = time.perf_counter(), time.process_time()
    work(url, answers)
    return time.perf_counter() - started, time.process_time() - used


def measure(url: str, runs: int, answers: int, chunks: int) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, (theirs, mine) in WAYS.items():
        for work in (theirs, mine):
            work(url, 1)
        pairs = [(cost(theirs, url, answers), cost(mine, url, answers)) for _ in range(runs)]
        found[name] = {}
        for clock, label in enumerate(("wall", "processor")):
            ratios = [mine_s[clock] / theirs_s[clock] for theirs_s, mine_s in pairs]
            low, middle, high = statistics.quantiles(ratios, n=4)
            us = [statistics.median(p[who][clock] for p in pairs) / answers / chunks * 1e6 for who in (0, 1)]
            found[name][label] = {
                "ratio": middle,
                "ratio_low": low,
                "ratio_high": high,
                "tritonclient_us": us[0],
                "trtspec_us": us[1],
            }
    return found


@click.command(help=__doc__)
@click.option("--runs", type=click.IntRange(2), default=7, show_default=True)
@click.option("--answers", type=click.IntRange(1), default=20, show_default=True)
@click.option("--chunks", type=click.IntRange(1), default=400, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(runs: int, answers: int, chunks: int, as_json: bool) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(chunks, there))
    server.start()
    try:
        found = measure(here.recv(), runs, answers, chunks)
    finally:
        here.send(None)
        server.join()
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, clocks in found.items():
        for clock, row in clocks.items():
            click.echo(
                f"{name}, {clock} time a response: {row['ratio']:.2f} times bare tritonclient's "
                f"({row['ratio_low']:.2f} to {row['ratio_high']:.2f}); "
                f"{row['trtspec_us']:.0f} against {row['tritonclient_us']:.0f} µs"
            )


if __name__ == "__main__":
    main()
