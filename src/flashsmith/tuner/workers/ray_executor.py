"""The `ray` executor: workers on the machines of a Ray cluster, answers to the one driver.

Each actor holds a child process of its own, as a local worker does: a kernel that kills the child
is an answer. An actor that is lost with its machine is another matter: it is replaced, and its job
is done again. Only the driver opens the store.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.base.loose_types import Foreign, Json, OptionalModule
from flashsmith.tuner.workers.executor import EVALUATOR, Answer, Died, Job, Late, Reply
from flashsmith.tuner.workers.pool import Worker

LOSSES = 3  # actors that one job may lose before it is held to be the cause

Actor = Foreign  # Ray's handle of one


class _RemoteWorker:
    """What runs on a machine of the cluster: a worker, spoken to in plain data."""

    def __init__(self, evaluator: str, environment: dict[str, str]) -> None:
        self._worker = Worker(evaluator, environment)

    def ask(self, job: Job, seconds: float) -> tuple[str, Json]:
        """The kind of the reply, and what it holds."""
        reply = self._worker.ask(job, seconds)
        if isinstance(reply, Answer):
            return "answer", reply.data
        return ("died", reply.cause) if isinstance(reply, Died) else ("late", reply.seconds)


class RayExecutor:
    """Actors that share one list of jobs; a context, for the connection to the cluster."""

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        gpu_type: str | None = None,
        needs_gpu: bool = True,
        evaluator: str = EVALUATOR,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._ray = _import_ray()
        self._connected_here = not self._ray.is_initialized()
        self._ends_process = signal.getsignal(signal.SIGTERM)
        try:
            if self._connected_here:
                self._ray.init(address=address, log_to_driver=False, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            self._restore_signal()
            raise ArgumentError(
                f"--address is {address!r}, where no Ray cluster answers ({error}); give the "
                f"address that `ray start --head` printed."
            ) from error
        where = {"num_gpus": 1, "num_cpus": 0} if needs_gpu else {"num_cpus": 1}
        placed = where | ({"accelerator_type": gpu_type} if gpu_type else {})
        self._class = self._ray.remote(**placed)(_RemoteWorker)
        self._arguments = (evaluator, environment or {})
        self._actors = [self._start() for _ in range(workers or self._room(needs_gpu))]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        if self._connected_here:
            self._ray.shutdown()
            self._restore_signal()

    def run(
        self, jobs: Sequence[Job], seconds: float, on_reply: Callable[[int, Reply], None]
    ) -> None:
        """Evaluates jobs in order of the list; a reply is handed on the moment it arrives."""
        waiting = deque(range(len(jobs)))
        losses = [0] * len(jobs)
        free = deque(self._actors)
        running: dict[Foreign, tuple[int, Actor]] = {}  # by Ray's references
        while waiting or running:
            while waiting and free:
                number, actor = waiting.popleft(), free.popleft()
                running[actor.ask.remote(jobs[number], seconds)] = number, actor
            ready, _ = self._ray.wait(list(running))
            number, actor = running.pop(ready[0])
            try:
                reply: Reply | None = _reply_of(*self._ray.get(ready[0]))
            except self._ray.exceptions.RayActorError as error:
                reply, actor = None, self._replaced(actor)
                losses[number] += 1
                if losses[number] >= LOSSES:
                    reply = Died(f"{LOSSES} workers were lost with it: {error}")
            free.append(actor)
            if reply is None:
                waiting.appendleft(number)
            else:
                on_reply(number, reply)

    def _restore_signal(self) -> None:
        """Gives SIGTERM back what Ray's connection took from it.

        A child that is forked later would run Ray's handler, in Python, where it should end: one
        that waits for a lock at that moment never does.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ends_process or signal.SIG_DFL)

    def _start(self) -> Actor:
        return self._class.remote(*self._arguments)

    def _replaced(self, lost: Actor) -> Actor:
        new = self._start()
        self._actors = [new if actor is lost else actor for actor in self._actors]
        return new

    def _room(self, needs_gpu: bool) -> int:
        """As many workers as the cluster has GPUs, or cores."""
        have = self._ray.cluster_resources().get("GPU" if needs_gpu else "CPU", 0)
        if have < 1:
            raise ArgumentError(
                "--executor ray: the cluster has no GPU; `tune` needs one per worker; start a "
                "machine with `ray start --address`, or add --device emulator."
            )
        return int(have)


def _reply_of(kind: str, value: Json) -> Reply:
    if kind == "answer":
        return Answer(value)
    return Died(value) if kind == "died" else Late(value)


def _import_ray() -> OptionalModule:
    try:
        import ray
    except ImportError as error:
        raise Unsupported(
            "--executor ray needs Ray, which is not installed; run pip install 'flashsmith[ray]'."
        ) from error
    return ray
