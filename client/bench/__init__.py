"""Measure a served pair: draft lengths against none, interleaved in one run.

`run.bench(targets, plan)` is the whole of it, `run.bench_async` the same in a running event loop.

Imports numpy and tritonclient; scipy and pydantic when they are needed.
"""
