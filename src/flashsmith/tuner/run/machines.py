"""Where a tuning run happens: on this machine's GPUs, in its emulator, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flashsmith.base.errors import ArgumentError, DeviceMissing
from flashsmith.compile.compiler import available_cores
from flashsmith.runtime.devices import default_device_name
from flashsmith.tuner.run.target import Target, target_here
from flashsmith.tuner.workers.executor import Answer, Executor, Reply
from flashsmith.tuner.workers.pool import WorkerPool, one_worker_a_gpu

EXECUTORS = ("local", "ray")
TARGET_SECONDS = 300.0  # a worker on another machine may have to start first


@dataclass(frozen=True, slots=True)
class Machines:
    """What a run may use; each field may be left out."""

    device: str | None = None  # "cuda" or "emulator"
    arch: str | None = None  # to compile for, without a GPU
    executor: str = "local"
    address: str | None = None  # of a cluster
    workers: int | None = None
    gpu_type: str | None = None  # of a cluster's workers

    @property
    def can_time(self) -> bool:
        """Whether a GPU is used."""
        return self._device_name == "cuda"

    @property
    def _device_name(self) -> str:
        # The cluster has the GPUs; the machine that drives it may have none.
        return self.device or ("cuda" if self.executor == "ray" else default_device_name())

    @contextmanager
    def open(self) -> Iterator[tuple[Target, Executor]]:
        """What is tuned for, and who does it."""
        self._require_sense()
        if self.executor == "ray":
            from flashsmith.tuner.workers.ray_executor import RayExecutor

            with RayExecutor(
                self.address,
                workers=self.workers,
                gpu_type=self.gpu_type,
                needs_gpu=self.can_time,
            ) as remote:
                yield asked_target(remote) if self.can_time else self._target_here(), remote
            return
        target = self._target_here()
        with local_pool(target, self.workers) as pool:
            yield target, pool

    def _target_here(self) -> Target:
        return target_here(self._device_name, self.arch)

    def _require_sense(self) -> None:
        if self.executor not in EXECUTORS:
            raise ArgumentError(
                f"executor is {self.executor!r}; it must be {' or '.join(EXECUTORS)}."
            )
        if self.executor == "local" and (self.address or self.gpu_type):
            name = "address" if self.address else "gpu_type"
            raise ArgumentError(f"{name} is given without a cluster; give executor 'ray' too.")
        if self.can_time and self.arch is not None:
            raise ArgumentError(
                f"arch is {self.arch!r} on a machine with a GPU; it is for tuning without one; "
                f"give device 'emulator' too, or drop it."
            )


def local_pool(target: Target, workers: int | None) -> WorkerPool:
    """One worker a GPU, for two that time on one would time each other; else one a core."""
    if not target.can_time:
        return WorkerPool(workers or available_cores())
    environments = one_worker_a_gpu(target.gpu)[:workers]
    return WorkerPool(len(environments), environments=environments)


def asked_target(remote: Executor) -> Target:
    """The target of the first worker that answers."""
    replies: dict[int, Reply] = {}
    remote.run([{"kind": "target", "device": "cuda"}], TARGET_SECONDS, replies.__setitem__)
    reply = replies[0]
    if not isinstance(reply, Answer):
        raise DeviceMissing(f"No worker of the cluster could open its GPU: {reply}.")
    return Target(**reply.data)
