"""The pair doctor: whether two checkpoints can speculate together, from files alone."""
