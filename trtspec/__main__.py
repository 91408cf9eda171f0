"""`python -m trtspec` is the `trtspec` command."""

from trtspec.cli import main

main()
