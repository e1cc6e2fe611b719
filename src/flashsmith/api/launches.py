"""What a call runs: chosen and prepared once for each shape and wish, and kept for the next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, cast

from flashsmith.api.ahead.substitutes import make_behind, substitute_on
from flashsmith.api.array_view import ALIGNED_ELEMENTS, ArrayView
from flashsmith.api.bias import bias_arg
from flashsmith.api.notices import say_once
from flashsmith.api.options import CallOptions, read_config
from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError, DeviceMissing, OutOfResources, Unsupported
from flashsmith.base.forks import call_in_forked_child
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Call
from flashsmith.kernels.plans import cut
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import BIAS, signature_of
from flashsmith.runtime.device import Device
from flashsmith.runtime.devices import (
    current_gpu,
    default_device,
    default_device_name,
    has_cuda,
)
from flashsmith.runtime.run import Prepared, prepare
from flashsmith.tuner.choose.choice import Choice, choose
from flashsmith.tuner.choose.shipped_kernels import shipped_or_compiled, shipped_or_kept

if TYPE_CHECKING:
    from flashsmith.runtime.cuda.device import CudaDevice

KEPT = 8192  # shapes; a server meets new lengths for as long as it runs
NOTHING_TO_DO = Choice(None, "none", "the output has no elements, or there are no keys")


@dataclass(frozen=True, slots=True)
class Launch:
    """A chosen and prepared plan."""

    choice: Choice
    prepared: Prepared
    until: Event | None = None  # of a substitute: set once the problem has kernels of its own


KEPT_LAUNCHES: dict[Hashable, Launch] = {}


@call_in_forked_child
def _forget() -> None:
    """What was prepared belongs to the parent's devices."""
    KEPT_LAUNCHES.clear()


def kept_launch(key: Hashable, make: Callable[[], Launch]) -> Launch:
    """The launch of a key; made where it is new. All are forgotten once they become too many."""
    found = KEPT_LAUNCHES.get(key)
    if found is None:
        found = make()
        if len(KEPT_LAUNCHES) >= KEPT:
            KEPT_LAUNCHES.clear()
        KEPT_LAUNCHES[key] = found
        # A substitute whose time ended meanwhile: who ended it may have looked here before.
        if found.until is not None and found.until.is_set():
            KEPT_LAUNCHES.pop(key, None)
    return found


def launch_for(
    device: Device, problem: AttentionProblem, options: CallOptions, inputs: Sequence[ArrayView]
) -> Launch:
    """The launch of `problem` on `device`; chosen, compiled and loaded on first use.

    Of `inputs` the strides count: a kernel may be unable to read some in place.
    """
    tensors = {view.name: tensor_arg(view.readable(), problem.layout) for view in inputs}
    strides = tuple((a.batch_stride, a.seq_stride, a.head_stride) for a in tensors.values())
    key = (device, problem, options.config, strides)
    return kept_launch(key, lambda: _prepare(device, problem, options, tensors))


def _prepare(
    device: Device,
    problem: AttentionProblem,
    options: CallOptions,
    inputs: Mapping[str, TensorArg],
) -> Launch:
    given = read_config(options.config)
    if problem.is_empty:
        return Launch(NOTHING_TO_DO, Prepared(device, problem, (), 0))
    call = {**_contiguous_outputs(problem), **inputs}
    _log_shape(problem, given)
    # What comes with a wheel is machine code alone.
    compile_with = None if device.runs_ptx else shipped_or_compiled
    # Where time counts; the emulator is slower than the compiler.
    substitute = None
    if device.can_time and compile_with is not None:
        substitute = substitute_on(device, compile_with, shipped_or_kept)
    unusable: dict[KernelConfig, str] = {}
    while True:
        choice = choose(problem, device.arch, gpu=device.name, given=given, unusable=unusable)
        assert choice.config is not None
        try:
            prepared = prepare(
                device, choice.config, problem,
                compile_with=compile_with, substitute=substitute, judged=True,
            )  # fmt: skip
            _require_readable(prepared, call)
            made = replace(choice, cut=cut(tuple(step.launch for step in prepared.steps)))
            is_other = prepared.is_substituted
            return _substituted(made, prepared) if is_other else Launch(made, prepared)
        except (Unsupported, OutOfResources) as error:  # strides, spills or registers
            if given is not None:
                raise
            unusable[choice.config] = str(error).removeprefix(f"{choice.config.short_form()}: ")


def _substituted(choice: Choice, prepared: Prepared) -> Launch:
    """A launch of kernels that do more than is asked, until the problem's own are compiled."""
    own, until = choice.config, Event()
    device, problem = prepared.device, prepared.problem
    assert own is not None

    def make() -> None:
        prepare(device, own, problem, compile_with=shipped_or_compiled)

    def end() -> None:
        until.set()
        for key, launch in list(KEPT_LAUNCHES.items()):
            if launch.until is until:
                KEPT_LAUNCHES.pop(key, None)

    make_behind(device, tuple(step.launch for step in prepared.steps), make, end)
    reason = f"{choice.reason}; a loaded kernel that gives the same bits runs until it is compiled"
    return Launch(replace(choice, reason=reason), prepared, until)


def _log_shape(problem: AttentionProblem, config: KernelConfig | None) -> None:
    path = settings.shapes_path()
    if path is not None:
        from flashsmith.api.ahead.shape_log import write_shape

        write_shape(path, problem, config)


def explained(launch: Launch, call: Call, stream: int = 0) -> Choice:
    """The choice, with the time of its launches on these tensors where a GPU runs them.

    They are run again for it, which writes the same bits again; not into a graph.
    """
    prepared = launch.prepared
    if not (prepared.device.can_time and prepared.steps):
        return launch.choice
    from flashsmith.measure.cuda_graph import median_us

    device = cast("CudaDevice", prepared.device)
    if device.is_capturing(stream):
        return launch.choice
    return replace(launch.choice, time_us=median_us(device, partial(prepared, call), stream))


def _require_readable(prepared: Prepared, call: Call) -> None:
    """Raises `Unsupported` if a kernel of the plan cannot take tensors of these strides."""
    for step in prepared.steps:
        obstacle = step.launch.obstacle(call)
        if obstacle:
            raise Unsupported(f"{step.launch.config.short_form()}: {obstacle}.")


def _contiguous_outputs(problem: AttentionProblem) -> dict[str, TensorArg]:
    """Outputs as a call makes them where it is given none; where they lie does not matter."""
    found = {}
    for role in signature_of(problem).outputs(problem):
        batch, rows, heads, d_head = (*role.rows_first(problem), 1)[:4]
        found[role.name] = TensorArg(0, rows * heads * d_head, heads * d_head, d_head)
        del batch
    return found


def host_device(backend: str | None) -> Device:
    """The device for arrays in the host's memory: the current GPU if any, else the emulator."""
    if backend == "cuda" and not has_cuda():
        raise ArgumentError(
            "backend is 'cuda' and this machine has no CUDA GPU; pass 'emulator' or None."
        )
    name = backend or default_device_name()
    if name == "emulator" and backend is None and settings.device_name() is None:
        say_once(
            "emulator",
            "flashsmith found no CUDA GPU and runs its kernels in the emulator, which is slow; "
            "pass backend='emulator' if this is wanted.",
        )
    return default_device(name, current_gpu() if name == "cuda" else 0)


def gpu_device(view: ArrayView, backend: str | None) -> Device:
    """The device on which an array lies that is on a GPU."""
    if backend == "emulator":
        raise ArgumentError(
            f"backend is 'emulator' and {view.name} is on {view.device}; copy q, k and v to the "
            f"host's memory first."
        )
    try:
        return default_device("cuda", int(view.device.partition(":")[2]))
    except DeviceMissing as error:
        raise ArgumentError(f"{view.name} is on {view.device}: {error}") from error


def tensor_arg(view: ArrayView, layout: str) -> TensorArg:
    """What a kernel is told of an array without an `obstacle`."""
    if view.name == BIAS:
        return bias_arg(view)
    if len(view.shape) != 4:  # a number a row, contiguous
        return TensorArg(view.address)
    bshd = view.in_bshd(layout)
    # The stride of a dimension with one element has no meaning; libraries put anything there.
    strides = [
        stride if extent > 1 else ALIGNED_ELEMENTS
        for extent, stride in zip(bshd.shape[:3], bshd.strides[:3], strict=True)
    ]
    batch, seq, head = strides
    return TensorArg(view.address, batch, seq, head)


def call_of(views: Sequence[ArrayView], layout: str) -> Call:
    """Where the tensors of a call lie, by the names of their views."""
    return {view.name: tensor_arg(view, layout) for view in views}


def say_copy(view: ArrayView, obstacle: str) -> None:
    """Tells once that an argument is copied before each call, and how to avoid it."""
    say_once(
        f"copy of {view.name}",
        f"flashsmith copies {view.name} before each call: {obstacle}; pass an array whose last "
        f"dimension is contiguous and whose rows begin at multiples of 16 bytes.",
    )
