"""A loaded kernel serves a problem bit for bit while the problem's own kernel is compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from flashsmith.base.errors import FlashsmithError, Unsupported
from flashsmith.base.forks import call_in_forked_child
from flashsmith.compile.artefact import PtxKernel
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Launch
from flashsmith.problem.needs import Needs
from flashsmith.runtime.device import Device
from flashsmith.runtime.run import Compile, KernelKey, Substitute

Kept = Callable[[KernelConfig, Needs, str], PtxKernel | None]
_AT_ONCE = 2  # compilers beside the caller's own work
_log = logging.getLogger("flashsmith.api")
_pool: ThreadPoolExecutor | None = None
_failed: set[Hashable] = set()  # what could not be made; the next call hears why


@call_in_forked_child
def _forget() -> None:
    global _pool
    _pool = None  # its threads are the parent's


def substitute_on(device: Device, compile_with: Compile, kept: Kept) -> Substitute:
    """What finds, for a launch whose kernel would have to be compiled, a loaded one instead."""

    def find(launch: Launch) -> PtxKernel | None:
        wanted = launch.config, launch.needs
        if launch.problem.operation != "forward" or (device, *wanted) in _failed:
            return None
        found = None
        for key, kernel in list(device.kernels.items()):
            config, needs, made_by = cast(KernelKey, key)
            is_same = config == launch.config and made_by is compile_with
            if is_same and needs.gives_bits_of(launch.needs):
                found = kernel
                break
        if found is None:
            return None
        try:
            is_there = kept(*wanted, device.arch) is not None
        except Unsupported:  # said to the caller by who prepares it
            return None
        return None if is_there else found

    return find


def make_behind(
    device: Device,
    launches: tuple[Launch, ...],
    make: Callable[[], object],
    then: Callable[[], None],
) -> None:
    """Calls `make` and `then` in a thread; what cannot be made is not tried there again."""
    global _pool

    def work() -> None:
        try:
            make()
        except FlashsmithError as error:
            _failed.update((device, launch.config, launch.needs) for launch in launches)
            _log.info("a kernel could not be compiled in the background: %s", error)
        finally:
            then()

    if _pool is None:
        _pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="flashsmith")
    _pool.submit(work)
