"""The check of a pair: whether two checkpoints can speculate together, from files alone."""
