"""Engines of TensorRT-LLM 1.2.1: what is asked of `trtllm-build`, running it, and looking at what it made."""
