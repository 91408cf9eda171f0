"""`python -m trtspec` is the `trtspec` command."""

from trtspec.cli import main

try:
    main()
finally:
    # An interrupt that came through code executed from text, as dataclasses are made in an import,
    # would make Python end `-m` by SIGINT, whatever the exit code. Executing text again forgets it.
    exec("")
