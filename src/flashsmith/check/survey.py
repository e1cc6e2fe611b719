"""Checking a whole set of configurations: in parallel, each failure a row and not an end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import FlashsmithError, LaunchError, OutOfResources, Unsupported
from flashsmith.check.cases import (
    Case,
    bias_cases,
    full_cases,
    packed_cases,
    quick_cases,
    serving_cases,
)
from flashsmith.check.verdict import Verdict, check_case
from flashsmith.compile.compiler import (
    CompileJob,
    available_cores,
    compile_kernel,
    compile_many,
)
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.plans import kernels_of
from flashsmith.runtime.device import Device
from flashsmith.runtime.devices import open_device

CASES: dict[str, Callable[[KernelConfig], tuple[Case, ...]]] = {
    "quick": quick_cases,
    "full": full_cases,
    "packed": packed_cases,
    "bias": bias_cases,
    "serving": serving_cases,
}
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Checked:
    """One configuration on one case: a verdict, or why it cannot run on this device."""

    config: KernelConfig
    case: str
    verdict: Verdict | None
    refusal: str
    seconds: float

    @property
    def wrong(self) -> bool:
        """Whether it ran (or should have) and was not right."""
        return self.verdict is not None and not self.verdict.ok


def check_one(device: Device, config: KernelConfig, case: Case) -> Checked:
    """Checks, and turns every error of the configuration into a row."""
    begin = time.perf_counter()
    verdict, refusal = None, ""
    try:
        if device.runs_ptx and not case.problem.is_empty:
            _require_accepted(device, config, case)
        verdict = check_case(device, config, case)
    except (OutOfResources, Unsupported) as error:
        refusal = str(error)
    except FlashsmithError as error:
        verdict = Verdict(case.name, ok=False, worst=float("inf"), reason=str(error))
    return Checked(config, case.name, verdict, refusal, time.perf_counter() - begin)


def _require_accepted(device: Device, config: KernelConfig, case: Case) -> None:
    """Raises where a GPU would not be given the machine code; the emulator runs PTX alone."""
    config.require_buildable(get_arch(device.arch))
    for own, needs in kernels_of(config, case.problem):
        compile_kernel(own, needs, device.arch)


def check_on_emulator(
    configs: Sequence[KernelConfig],
    cases: str = "quick",
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Checked]:
    """Every configuration on its cases, one process a core; in the order of `configs`."""
    work = [(config, case) for config in configs for case in CASES[cases](config)]
    workers = min(workers or available_cores(), max(len(work), 1))
    if workers == 1:
        return _serially(_emulator(), work, progress)
    with _checking_processes(workers) as pool:
        futures = [pool.submit(_check_in_worker, config, case) for config, case in work]
        for done, _ in enumerate(as_completed(futures), start=1):
            if progress is not None:
                progress(done, len(work))
        return [future.result() for future in futures]


def check_on_device(
    device: Device,
    configs: Sequence[KernelConfig],
    cases: str = "quick",
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Checked]:
    """Every configuration on its cases on one device; kernels are compiled on all cores first."""
    work = [(config, case) for config in configs for case in CASES[cases](config)]
    compile_many(compile_jobs(device, work), workers=workers)
    return _serially(device, work, progress)


def compile_jobs(device: Device, work: Sequence[tuple[KernelConfig, Case]]) -> list[CompileJob]:
    """The kernels that checking will ask for, each once; what cannot run is left out."""
    jobs: dict[CompileJob, None] = {}
    for config, case in work:
        try:
            kernels = kernels_of(config, case.problem)
        except FlashsmithError:  # said when it is checked
            continue
        if config.runs_on(device.arch):
            jobs |= {CompileJob(own, needs, device.arch): None for own, needs in kernels}
    return list(jobs)


def _serially(
    device: Device, work: Sequence[tuple[KernelConfig, Case]], progress: Progress | None
) -> list[Checked]:
    checked: list[Checked] = []
    stopped = ""
    for config, case in work:
        if stopped:
            checked.append(Checked(config, case.name, None, stopped, 0.0))
        else:
            checked.append(check_one(device, config, case))
            verdict = checked[-1].verdict
            if verdict is not None and verdict.fault and not _is_alive(device):
                stopped = f"Not run: the GPU stopped at {config.short_form()} on {case.name!r}."
        if progress is not None:
            progress(len(checked), len(work))
    return checked


def _is_alive(device: Device) -> bool:
    """Whether a device still answers: after an illegal access a CUDA context does nothing more."""
    try:
        device.synchronize()
    except LaunchError:
        return False
    return True


@contextmanager
def _checking_processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes; they end at once when the caller leaves early, or is killed.

    Fresh, because a fork would copy locks that threads of this process hold.
    """
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, initializer=_serve_until, initargs=(theirs,))
    try:
        yield pool
    except BaseException:
        ours.close()
        pool.shutdown(cancel_futures=True)  # at once: nobody is left to wait for
        raise
    pool.shutdown()
    ours.close()


def _serve_until(parent: Connection) -> None:
    """Makes this process end with the other end of the pipe, whatever it is doing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who then closes the pipe

    def watch() -> None:
        wait([parent])
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


@cache
def _emulator() -> Device:
    """The emulator of this process."""
    return open_device("emulator")


def _check_in_worker(config: KernelConfig, case: Case) -> Checked:
    return check_one(_emulator(), config, case)
