"""Where `flashsmith tune` runs: this machine's GPUs, its emulator, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from flashsmith.base.errors import ArgumentError, DeviceMissing
from flashsmith.cli.output import note
from flashsmith.compile.compiler import available_cores
from flashsmith.runtime.devices import default_device_name
from flashsmith.tuner.run.target import Target, target_here
from flashsmith.tuner.workers.executor import Answer, Executor, Reply
from flashsmith.tuner.workers.pool import WorkerPool, one_worker_a_gpu

EXECUTORS = ("local", "ray")
TARGET_SECONDS = 300.0  # a worker on another machine may have to start first

ExecutorOption = Annotated[
    str,
    typer.Option(
        "--executor", help="local: a worker for each GPU here; ray: the machines of a cluster."
    ),
]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="With --executor ray: the cluster's address.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Workers; else one a GPU, or one a core without."),
]
GpuTypeOption = Annotated[
    str | None, typer.Option("--gpu-type", help="With --executor ray: only GPUs of this type.")
]


@contextmanager
def place(
    device: str | None,
    arch: str | None,
    executor: str,
    *,
    address: str | None,
    workers: int | None,
    gpu_type: str | None,
) -> Iterator[tuple[Target, Executor]]:
    """What is tuned for, and who does it."""
    if executor not in EXECUTORS:
        raise ArgumentError(f"--executor is {executor!r}; it is {' or '.join(EXECUTORS)}.")
    if executor == "local" and (address or gpu_type):
        option = "--address" if address else "--gpu-type"
        raise ArgumentError(f"{option} is given without a cluster; add --executor ray.")
    if executor == "ray":
        from flashsmith.tuner.workers.ray_executor import RayExecutor

        # The cluster has the GPUs; the machine that drives it may have none.
        name = device or "cuda"
        with RayExecutor(
            address, workers=workers, gpu_type=gpu_type, needs_gpu=name == "cuda"
        ) as remote:
            yield _target(name, arch, remote), remote
        return
    target = _target(device or default_device_name(), arch, None)
    with local_pool(target, workers) as pool:
        yield target, pool


def local_pool(target: Target, workers: int | None) -> WorkerPool:
    """One worker a GPU, for two that time on one would time each other; else one a core."""
    if not target.can_time:
        return WorkerPool(workers or available_cores())
    environments = one_worker_a_gpu(target.gpu)[:workers]
    return WorkerPool(len(environments), environments=environments)


def _target(name: str, arch: str | None, remote: Executor | None) -> Target:
    if name == "cuda" and arch is not None:
        raise ArgumentError(
            f"--arch is {arch!r} on a machine with a GPU; it is for tuning without one; add "
            f"--device emulator, or drop it."
        )
    target = _asked(remote) if remote and name == "cuda" else target_here(name, arch)
    if not target.can_time:
        note(
            f"No GPU is used: kernels are compiled for {target.arch} and verified in the emulator; "
            f"nothing is timed."
        )
    return target


def _asked(remote: Executor) -> Target:
    """The target of the first worker that answers."""
    replies: dict[int, Reply] = {}
    remote.run([{"kind": "target", "device": "cuda"}], TARGET_SECONDS, replies.__setitem__)
    reply = replies[0]
    if not isinstance(reply, Answer):
        raise DeviceMissing(f"No worker of the cluster could open its GPU: {reply}.")
    return Target(**reply.data)
