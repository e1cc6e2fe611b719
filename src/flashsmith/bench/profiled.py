"""The program that a profiler watches: launches what the kernel cache holds, notes the order.

    python -m flashsmith.bench.profiled JOB.json LAUNCHES.jsonl

The reference runs first in every round, so that two of its calls never stand side by side: what a
profiler saw between two kernels of ours is one call of the reference.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from flashsmith.base.errors import FlashsmithError
from flashsmith.bench.peers import find_peers, torch_tensors
from flashsmith.bench.profile import REFERENCE, Job, Launched
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.device import Device
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import prepare
from flashsmith.runtime.tensors import contiguous_tensors, uploaded

_PEER = "FlashAttention-2 (torch)"
Note = Callable[[Launched], None]
Call = Callable[[], None]


def launch_all(device: Device, job: Job, note: Note) -> None:
    """Launches every configuration of every task `job.runs` times; notes each launch."""
    for number, task in enumerate(job.tasks):
        locations, buffers = contiguous_tensors(task.problem, random_inputs(task.problem))
        with (
            _reference(task.problem, job.reference) as reference,
            uploaded(device, buffers) as held,
        ):
            ready = {}
            for config in task.configs:
                try:
                    ready[config.short_form()] = prepare(device, config, task.problem)
                except FlashsmithError as error:
                    note(Launched(number, config.short_form(), str(error)))
            for _ in range(job.runs if ready else 0):
                if reference is not None:
                    reference()
                    note(Launched(number, REFERENCE))
                for name, prepared in ready.items():
                    prepared(held.call(locations))
                    device.synchronize()
                    note(Launched(number, name))


@contextmanager
def _reference(problem: AttentionProblem, wanted: bool) -> Iterator[Call | None]:
    """A call of torch's FlashAttention-2 that waits for it, or None where it cannot be had."""
    if not wanted or find_spec("torch") is None:
        yield None
        return
    import torch

    if not torch.cuda.is_available():
        yield None
        return
    with torch_tensors(problem) as tensors:
        q, k, v = (tensors[name] for name in "qkv")
        attention = find_peers([_PEER])[0].make(problem, q, k, v)

        def call() -> None:
            with torch.no_grad():
                attention()
            torch.cuda.synchronize()

        yield call


def main() -> None:
    """Reads the job, launches, and writes what was launched line by line."""
    job = Job.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with Path(sys.argv[2]).open("w", encoding="utf-8") as file:

        def note(launched: Launched) -> None:
            file.write(json.dumps(launched.to_data()) + "\n")
            file.flush()

        launch_all(default_device("cuda"), job, note)


if __name__ == "__main__":
    main()
