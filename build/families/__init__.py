"""One module per model family: its tensor names and its exceptions."""
