"""Pairs for the LLM API of TensorRT-LLM: Hugging Face checkpoints, and the arguments that join them."""
