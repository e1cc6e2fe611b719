"""The child process that evaluates jobs: one JSON line in, one JSON line out, until stdin ends."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable

from flashsmith.base.loose_types import JsonObject

Evaluate = Callable[[JsonObject], JsonObject]


def main() -> None:
    """Serves jobs with the function that the first argument names as `module:function`."""
    # Ctrl-C reaches every process of a terminal; the tuner ends its workers, and a worker that died
    # of it would be a kernel's failure.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, _, name = sys.argv[1].partition(":")
    evaluate: Evaluate = getattr(importlib.import_module(module), name)
    # The protocol gets a descriptor of its own: what a library prints must not look like an answer.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            answers.write(json.dumps(evaluate(json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
