"""Streams, events and graphs of the driver, as far as timing needs them."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from flashsmith.base.errors import LaunchError
from flashsmith.runtime.cuda.device import CudaDevice
from flashsmith.runtime.cuda.driver import Driver

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered against the default stream
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_DEFAULT_EVENT = 0

Launch = Callable[[int], None]  # puts work on the stream of that handle


def median_us(device: CudaDevice, launch: Launch, stream: int, times: int = 3) -> float:
    """GPU time of `launch` on a stream that is its caller's, behind what is on it."""
    driver = device.driver
    with device.current(), ExitStack() as closing:
        events = []
        for _ in range(2):
            events.append(driver.pointer("cuEventCreate", _DEFAULT_EVENT))
            closing.callback(driver.call, "cuEventDestroy_v2", events[-1])
        return statistics.median(
            _elapsed_us(driver, launch, stream, (events[0], events[1])) for _ in range(times)
        )


def _elapsed_us(driver: Driver, launch: Launch, stream: int, events: tuple[int, int]) -> float:
    start, stop = events
    driver.call("cuEventRecord", start, stream)
    launch(stream)
    driver.call("cuEventRecord", stop, stream)
    driver.call("cuEventSynchronize", stop)
    milliseconds = ctypes.c_float()
    driver.call("cuEventElapsedTime", ctypes.byref(milliseconds), start, stop)
    return milliseconds.value * 1e3


class Timer:
    """One stream of a device, with what times work on it; closed by `with`."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self._closing = ExitStack()

    def __enter__(self) -> Timer:
        self._closing.enter_context(self.device.current())
        driver = self.device.driver
        self.stream = driver.pointer("cuStreamCreate", _NON_BLOCKING)
        self._closing.callback(driver.call, "cuStreamDestroy_v2", self.stream)
        self._start = driver.pointer("cuEventCreate", _DEFAULT_EVENT)
        self._closing.callback(driver.call, "cuEventDestroy_v2", self._start)
        self._stop = driver.pointer("cuEventCreate", _DEFAULT_EVENT)
        self._closing.callback(driver.call, "cuEventDestroy_v2", self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def capture(self, launch: Launch) -> Launch:
        """A launch of the graph that `launch` makes; it must not wait for the GPU."""
        driver = self.device.driver
        with self._capturing() as graphs:
            launch(self.stream)
        graph = graphs[0]
        if not graph:
            raise LaunchError("cuStreamEndCapture", "no graph", "the contender did not launch")
        self._closing.callback(driver.call, "cuGraphDestroy", graph)
        executable = driver.pointer("cuGraphInstantiateWithFlags", graph, 0)
        self._closing.callback(driver.call, "cuGraphExecDestroy", executable)
        return lambda stream: driver.call("cuGraphLaunch", executable, stream)

    def elapsed_us(self, launch: Launch, before: Launch | None = None) -> float:
        """GPU time of `launch`, which starts right after `before` on the same stream."""
        if before is not None:
            before(self.stream)
        events = self._start, self._stop
        return _elapsed_us(self.device.driver, launch, self.stream, events)

    def wait(self) -> None:
        """Waits for all work of the stream."""
        self.device.driver.call("cuStreamSynchronize", self.stream)

    @contextmanager
    def _capturing(self) -> Iterator[list[int]]:
        """Gives a list that holds the graph once the block is left."""
        driver = self.device.driver
        graphs: list[int] = []
        driver.call("cuStreamBeginCapture_v2", self.stream, _THREAD_LOCAL)
        try:
            yield graphs
        finally:
            graphs.append(driver.pointer_from("cuStreamEndCapture", self.stream))
