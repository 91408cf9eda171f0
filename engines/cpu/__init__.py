"""The embedded engine: runs a Hugging Face checkpoint on any machine.

This folder is copied verbatim into the repositories it serves from, so its modules import each
other relatively and nothing else of trtspec.
"""
