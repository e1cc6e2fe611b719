"""Workers kept warm, watched, and replaced when they die: a bad kernel costs its own job only."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from types import TracebackType
from typing import Self

from flashsmith.base import settings
from flashsmith.base.threads import dropping_threads
from flashsmith.runtime.devices import gpu_names
from flashsmith.tuner.workers.executor import EVALUATOR, Answer, Died, Job, Late, Reply

_STDERR_LINES = 20
_LAST_WORDS_SECONDS = 5.0  # a grandchild may keep the pipe open for longer


class Worker:
    """One child process, started with its first job and again after each death."""

    def __init__(self, evaluator: str, environment: dict[str, str] | None = None) -> None:
        self._evaluator = evaluator
        self._environment = environment or {}
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._complaints: list[str] = []
        self._listener: threading.Thread | None = None
        self._is_closed = False
        self._lock = threading.Lock()  # held while a child starts or is ended for good

    def ask(self, job: Job, seconds: float) -> Reply:
        """Hands a job to the child and waits for its answer, its death, or the end of its time."""
        with self._lock:
            if self._is_closed:
                return Died("the pool was ended before it began")
            process = self._process or self._start()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except BrokenPipeError:
            line = None
        except queue.Empty:
            self.stop()
            return Late(seconds)
        if line is None:
            return Died(self._cause(process))
        answer = Answer(json.loads(line))
        if answer.data.get("retire"):
            # The evaluator says that its device is no longer usable (a sticky CUDA error).
            self.stop()
        return answer

    def stop(self) -> None:
        """Ends the child; the next job starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Ends the child for good: a thread that is about to ask starts no other."""
        with self._lock:
            self._is_closed = True
        self.stop()

    def _start(self) -> subprocess.Popen[str]:
        self._lines, self._complaints = queue.SimpleQueue(), []
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "flashsmith.tuner.workers.worker", self._evaluator],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=settings.child_environment(self._environment),
        )
        # A reader is given where it writes: one that starts late must not reach the next child's.
        answers = threading.Thread(target=_read_answers, args=(process, self._lines), daemon=True)
        self._listener = threading.Thread(
            target=_read_complaints, args=(process, self._complaints), daemon=True
        )
        answers.start()
        self._listener.start()
        return process

    def _cause(self, process: subprocess.Popen[str]) -> str:
        code = process.wait()
        self._process = None
        if self._listener is not None:
            self._listener.join(_LAST_WORDS_SECONDS)  # its last words are the cause
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        last = next((line for line in reversed(self._complaints) if line), "")
        return f"the worker died ({how})" + (f": {last}" if last else "")


def _read_answers(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _read_complaints(process: subprocess.Popen[str], complaints: list[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        complaints.append(line.strip())
        del complaints[:-_STDERR_LINES]


class WorkerPool:
    """Several workers of this machine that share one list of jobs: the `local` executor."""

    def __init__(
        self,
        count: int,
        evaluator: str = EVALUATOR,
        environments: Sequence[dict[str, str]] = (),
    ) -> None:
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._workers = [
            Worker(evaluator, environments[number] if environments else None)
            for number in range(count)
        ]
        for worker in self._workers:
            self._free.put(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.close()

    def run(
        self, jobs: Sequence[Job], seconds: float, on_reply: Callable[[int, Reply], None]
    ) -> None:
        """Evaluates jobs in order of the list; `on_reply` gets each job's number and its reply.

        A worker is given its next job when `on_reply` has returned: what a killed process loses is
        what its workers had in hand. When it is left by an error or Ctrl-C, jobs that did not begin
        are dropped and the workers are ended for good.
        """
        try:
            with dropping_threads(len(self._workers)) as threads:
                numbers = {threads.submit(self._one, job, seconds): n for n, job in enumerate(jobs)}
                for done in as_completed(numbers):
                    worker, reply = done.result()
                    on_reply(numbers[done], reply)
                    self._free.put(worker)
        except BaseException:
            for worker in self._workers:
                worker.close()
                self._free.put(worker)  # threads that wait for one end
            raise

    def _one(self, job: Job, seconds: float) -> tuple[Worker, Reply]:
        worker = self._free.get()
        return worker, worker.ask(job, seconds)


def one_worker_a_gpu(gpu: str) -> list[dict[str, str]]:
    """The environments of workers that each see one GPU of that name, and no other."""
    names = gpu_names()
    return [settings.only_gpu(number) for number, name in enumerate(names) if name == gpu]
