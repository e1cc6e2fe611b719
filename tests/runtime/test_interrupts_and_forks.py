"""A call that is interrupted, or copied by a fork, never makes a later answer wrong."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import flashsmith
from flashsmith.base.errors import DeviceMissing, EmulationError
from flashsmith.compile.cache.kernel_cache import KernelCache
from flashsmith.compile.compiler import compile_text
from flashsmith.compile.nvrtc import program as nvrtc
from flashsmith.emulator.machine.processes import run_all
from flashsmith.emulator.memory import GlobalMemory
from flashsmith.runtime import devices
from flashsmith.runtime.cuda import driver
from flashsmith.runtime.emulated import EmulatedDevice

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no forks there")
SECONDS = 60  # a child that is not done by then hangs
# Tiles come from a counter in the workspace, which the kernel leaves zero at its end.
DYNAMIC = (
    "hopper(FP16, 64, 1, 64): kv_2+q_1+overlap+stats_SUM+lazy_8+tiles_DYNAMIC+o_smem+regs_240_56"
)


def _inputs(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(1, 450, 3, 64)).astype(np.float16) for _ in range(3)]


def _attend(arrays):
    return flashsmith.flash_attention(*arrays, backend="emulator", config=DYNAMIC)


@pytest.fixture
def interrupt():
    """Raises KeyboardInterrupt in this thread, as a stop button does, after some seconds."""

    def stop(signal_number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_the_call_after_an_interrupted_one_is_right(interrupt):
    arrays = _inputs()
    _attend(arrays)
    started = time.perf_counter()
    wanted = _attend(arrays)
    seconds = time.perf_counter() - started
    interrupted = 0
    for part in (0.3, 0.45, 0.6, 0.75):
        try:
            interrupt(part * seconds)
            _attend(arrays)
        except KeyboardInterrupt:
            interrupted += 1
        interrupt(0)
        assert np.array_equal(_attend(arrays), wanted)
    assert interrupted


def test_memory_is_consistent_wherever_an_interrupt_comes():
    """An exception after every line of allocate and free: places never overlap, none is lost."""
    for stop_at in range(200):
        memory = GlobalMemory()
        kept = [memory.allocate(100) for _ in range(3)]
        lines = 0

        def trace(frame, event, argument, stop_at=stop_at):
            nonlocal lines
            if frame.f_code.co_filename.endswith("emulator/memory.py"):
                lines += 1
                if lines == stop_at:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            memory.free(kept[1])
            memory.allocate(5000)
            memory.allocate(2 << 20)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        memory.write(kept[0], np.full(100, 7, np.uint8))
        new = [memory.allocate(300) for _ in range(4)]
        for address in new:
            memory.write(address, np.full(300, 9, np.uint8))
        assert (memory.read(kept[0], 100) == 7).all()
        assert memory.views[4].base is not None
        assert memory.views[4].nbytes == memory.u8.nbytes


def _answer(seed):
    return _attend(_inputs(seed)).tobytes()


def test_a_pool_forked_after_a_call_gives_right_answers():
    wanted = [_answer(seed) for seed in range(3)]
    with multiprocessing.get_context("fork").Pool(3) as pool:
        answers = pool.map_async(_answer, list(range(3)) * 2, chunksize=1)
        mine = [_answer(seed) for seed in range(3)]  # the parent goes on beside its children
        assert answers.get(timeout=SECONDS) == wanted * 2
    assert mine == wanted


def _forward(seed):
    q, k, v, do = (x[:, :150] for x in (*_inputs(seed), _inputs(seed + 50)[0]))
    o, lse = flashsmith.flash_attention(q, k, v, return_lse=True, backend="emulator")
    return do, q, k, v, o, lse


def _gradients(arrays):
    """A call of several launches, which hand results over in memory of the device's."""
    found = flashsmith.flash_attention_backward(*arrays, backend="emulator")
    return b"".join(gradient.tobytes() for gradient in found)


def test_threads_get_the_gradients_that_each_asked_for():
    calls = [_forward(seed) for seed in range(2)]
    wanted = [_gradients(arrays) for arrays in calls]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(_gradients, calls * 2)) == wanted * 2
    finally:
        sys.setswitchinterval(interval)


def _exit_code(child):
    """What a forked child that runs `child` ends with; None where it hangs and was killed."""
    number = os.fork()
    if number == 0:
        code = 9
        try:
            code = child()
        finally:
            os._exit(code)
    for _ in range(20 * SECONDS):
        done, status = os.waitpid(number, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)
    return None


def test_a_fork_while_another_thread_is_in_a_call_does_not_hang():
    wanted = _answer(0)
    is_over = threading.Event()

    def keep_calling():
        while not is_over.is_set():
            _answer(1)

    thread = threading.Thread(target=keep_calling)
    thread.start()
    try:
        for _ in range(3):
            time.sleep(0.1)
            assert _exit_code(lambda: 0 if _answer(0) == wanted else 1) == 0
    finally:
        is_over.set()
        thread.join()


def test_a_device_of_the_parent_is_the_childs_own_after_a_fork():
    device = EmulatedDevice()
    address = device.allocate(4)
    device.upload(address, np.array([5], np.uint32))

    def child():
        device.upload(address, np.array([6], np.uint32))
        return int(device.download(address, 4).view(np.uint32)[0])

    device._lock.acquire()  # as if another thread of the parent were in a call
    held = threading.Thread(target=lambda: None)
    held.start()
    held.join()
    try:
        assert _exit_code(child) == 6
    finally:
        device._lock.release()
    assert device.download(address, 4).view(np.uint32)[0] == 5


def test_cuda_after_a_fork_is_a_clear_error_and_never_the_emulator(monkeypatch):
    monkeypatch.setattr(driver, "_found", [driver.Driver(None)])
    monkeypatch.delenv("FLASHSMITH_DEVICE", raising=False)

    def child():
        try:
            devices.default_device_name()
        except DeviceMissing as error:
            return 0 if "does not survive a fork" in str(error) else 1
        return 2

    assert _exit_code(child) == 0
    assert not driver._is_lost


def test_a_child_forked_during_a_compilation_compiles_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc, "_compiling", {1})
    source = 'extern "C" __global__ void nothing() {}'

    def child():
        kernel = compile_text(source, "nothing", "sm_80", cache=KernelCache(tmp_path, 1 << 20))
        return 0 if "nothing" in kernel.ptx and not nvrtc.survived_fork() else 1

    assert _exit_code(child) == 0
    assert nvrtc.survived_fork()


def test_a_lock_of_the_cache_is_free_although_a_forked_child_has_its_file_open(tmp_path):
    cache = KernelCache(tmp_path, 1 << 20)
    started, is_over = multiprocessing.Event(), multiprocessing.Event()

    def child():
        started.set()
        is_over.wait(SECONDS)

    with cache.lock("key"):
        path = tmp_path / "locks" / "key"
        waiting = os.open(path, os.O_RDWR)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        assert started.wait(SECONDS)
    import fcntl

    fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where it is still held
    os.close(waiting)
    is_over.set()
    process.join()


def test_a_helper_that_dies_is_an_error_and_no_hang():
    def run(job):
        if job == 3:
            os._exit(1)
        return job

    with pytest.raises(EmulationError, match="a process of this launch ended early"):
        run_all(run, range(6), 2, at_once=True)


def test_helpers_write_into_their_parents_memory_and_a_fault_of_one_is_raised():
    memory = GlobalMemory()
    address = memory.allocate(6)

    def run(job):
        memory.write(address + job, np.array([job + 1], np.uint8))
        if job == 5:
            raise EmulationError("fault", "of a helper")
        return job

    assert run_all(run, range(5), 2, at_once=True) == [0, 1, 2, 3, 4]
    assert memory.read(address, 5).tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(EmulationError, match="of a helper"):
        run_all(run, range(6), 2, at_once=True)
