"""Checkpoints in, engine pair out."""
