"""Speculative decoding in production: a Hugging Face pair in, a verified Triton deployment out."""

__version__ = "0.1.0"
