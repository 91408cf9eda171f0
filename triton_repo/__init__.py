"""An engine pair in, a Triton model repository out; and the server that serves it."""
