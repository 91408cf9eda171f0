"""Processor cores that do not sleep between the steps of a round.

The two calls of a round pass through half a dozen threads of several processes, one waking the next, and
waking a core that sleeps takes long beside what the thread then does, above all in a virtual machine.
Linux keeps cores awake as long as a process holds a file open that says how long waking may take:
https://docs.kernel.org/power/pm_qos_interface.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trtspec.errors import ServerError

DEVICE = Path("/dev/cpu_dma_latency")
# A signed 32 bit number in the machine's byte order, in microseconds.
NO_LATENCY = struct.pack("i", 0)


@contextmanager
def cores_awake(device: Path = DEVICE) -> Iterator[None]:
    """Keep all cores of the machine awake while the block runs; they take more power meanwhile.

    Raises:
        ServerError: the machine has no such device, or this user may not write to it.
    """
    with ExitStack() as held:
        try:
            held.enter_context(device.open("r+b", buffering=0)).write(NO_LATENCY)
        except OSError as error:
            raise ServerError(
                f"{device}: keeps cores awake, and cannot be written: {error.strerror}; serve as a user who "
                "may write to it (root, as a rule), or without --keep-awake"
            ) from error
        yield
