"""Which GPU a call runs on: that of its arrays, whichever is current; first calls in captures."""

import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest
from standin_gpus import Started, plug_in

from flashsmith import flash_attention
from flashsmith.api import gpu_call
from flashsmith.api.array_view import ArrayView, compact
from flashsmith.api.options import CallOptions
from flashsmith.base.errors import ArgumentError, LaunchError

SHORT = "(FP16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles"
HOPPER = "hopper(FP16, 64, 2, 64): kv_2+q_4+overlap+tiles_DYNAMIC+regs_232_40"
STREAM = 0x57


@dataclass
class Elsewhere:
    """Arrays of a library that orders its work by the stream `STREAM`."""

    orders_by_stream = True

    def view(self, name, array):
        return replace(array, name=name)

    def stream(self, array):
        return STREAM

    def new(self, like, shape, dtype):
        return replace(like, shape=shape, strides=compact(shape), dtype=dtype, address=1 << 30)


def arrays_on(gpu, rows=70):
    shape = (2, rows, 3, 64)
    return (ArrayView("", shape, compact(shape), "float16", 1 << 20, f"cuda:{gpu}"),) * 3


def call_on(gpu, rows=70, config=SHORT):
    gpu_call.attend(Elsewhere(), arrays_on(gpu, rows), None, CallOptions(config=config))


@pytest.fixture
def two(monkeypatch):
    return plug_in(monkeypatch, "NVIDIA H200", "NVIDIA H200")


@pytest.mark.parametrize("current", [None, 0, 1])
@pytest.mark.parametrize("gpu", [0, 1])
def test_a_call_runs_where_its_arrays_are_whichever_gpu_is_current(two, gpu, current):
    if current is None:
        call_on(gpu)
    else:
        with two.current(current):
            call_on(gpu)
            assert two._gpu() == current, "the caller's GPU is current no more"
    ((started),) = two.started
    assert (started.gpu, started.stream) == (gpu, STREAM)


def test_each_gpu_loads_the_kernel_once_and_runs_its_own(two):
    for gpu in (1, 0, 1, 0):
        call_on(gpu)
    assert [started.gpu for started in two.started] == [1, 0, 1, 0]
    assert [gpu for gpu, _ in two.loaded] == [1, 0]


def test_threads_of_several_gpus_do_not_meet(two):
    def work(gpu):
        for rows in (70, 71, 72):
            call_on(gpu, rows)

    threads = [threading.Thread(target=work, args=(gpu,)) for gpu in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started.gpu for started in two.started) == [0] * 6 + [1] * 6


def test_arrays_of_two_gpus_in_one_call_are_refused(two):
    q, k, v = arrays_on(0)
    mixed = (q, k, replace(v, device="cuda:1"))
    with pytest.raises(ArgumentError, match="q is on cuda:0 and v on cuda:1"):
        gpu_call.attend(Elsewhere(), mixed, None, CallOptions())


def test_a_gpu_that_the_driver_does_not_see_is_named(two):
    with pytest.raises(ArgumentError, match=r"q is on cuda:2: CUDA device 2 .* there are 2"):
        call_on(2)


@pytest.mark.parametrize(("current", "expected"), [(None, 0), (0, 0), (1, 1)])
def test_numpy_arrays_go_to_the_current_gpu(two, current, expected):
    q = np.zeros((1, 70, 3, 64), np.float16)
    if current is None:
        flash_attention(q, q, q, config=SHORT)
    else:
        with two.current(current):
            flash_attention(q, q, q, config=SHORT)
    assert [started.gpu for started in two.started] == [expected]


@pytest.mark.parametrize("config", [SHORT, HOPPER], ids=["mma", "hopper"])
def test_a_first_call_can_be_captured(two, config):
    """It loads its kernel and makes its workspace as a capturing thread may, and on no stream."""
    with two.current(0), two.capture(STREAM):
        call_on(0, config=config)
    ((started),) = two.started
    assert started == Started(0, two.loaded[0][1], STREAM)
    assert two._thread.mode == 0, "the thread's capture mode was not restored"


def test_a_call_that_must_wait_is_refused_in_a_capture_with_advice(two):
    q = np.zeros((1, 70, 3, 64), np.float16)
    with (
        two.current(0),
        two.capture(STREAM),
        pytest.raises(LaunchError, match="capture calls on arrays of the GPU, or call before"),
    ):
        flash_attention(q, q, q, config=SHORT)
    assert not two._memory, "memory was not given back"
