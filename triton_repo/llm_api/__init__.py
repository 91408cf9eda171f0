"""The public model over TensorRT-LLM's LLM API, which speculates by itself.

Copied into repositories beside the package `speculation`, whose requests, texts and responses it shares;
so it imports that, and itself, relatively and nothing else of ours.
"""
