"""Measure a served pair: draft lengths against none, interleaved in one run.

Imports numpy and tritonclient; scipy and pydantic when they are needed.
"""
