"""FP8 without a GPU: scales found by calibration or read from a checkpoint, and what they cost."""
