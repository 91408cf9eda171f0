"""One system in a process of its own, on one core: questions in as lines of JSON, answers out.

python worker.py SYSTEM FOLDER DTYPE CORE     # started by run.py; CORE "all" leaves it free
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def main(name: str, folder: str, dtype: str, clock: str, core: str) -> None:
    if core != "all":
        os.sched_setaffinity(0, {int(core)})
    # Libraries print; only answers may go where the answers are read.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from systems import SYSTEMS, Question

    with SYSTEMS[name](Path(folder), dtype, CLOCKS[clock]) as ask:
        print("{}", file=answers, flush=True)
        for line in sys.stdin:
            answer = ask(Question(**json.loads(line)))
            print(json.dumps(asdict(answer)), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
