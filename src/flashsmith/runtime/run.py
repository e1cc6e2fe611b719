"""Forward attention on a device: configuration and problem become one launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import ArgumentError
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import compile_kernel
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import ForwardCall, LaunchPlan, TensorArg
from flashsmith.kernels.plans import plan as make_plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import ForwardTraits
from flashsmith.runtime.device import Device, Launcher
from flashsmith.runtime.limits import require_fits
from flashsmith.runtime.tensors import lse_shape, tensor_shapes, tensors_on

Compile = Callable[[KernelConfig, ForwardTraits, str], CompiledKernel]
KEPT_PREPARED = 8192  # shapes; a server meets new lengths for as long as it runs
STRIDE_STEP = 8  # elements of one 16-byte access
MINUS_INFINITY = 0xFF800000  # float32


@dataclass(frozen=True, slots=True)
class PreparedForward:
    """A kernel loaded and laid out for one problem: what a warm call needs, and nothing else."""

    device: Device
    kernel: CompiledKernel
    plan: LaunchPlan
    launcher: Launcher

    def __call__(self, call: ForwardCall, stream: int = 0) -> None:
        """Starts the kernel on tensors whose strides `require_aligned` accepted."""
        if self.plan.workspace_bytes:
            workspace = self.device.workspace(self.plan.workspace_bytes, stream)
            call = ForwardCall(call.q, call.k, call.v, call.o, call.lse, workspace)
        self.launcher(self.plan.params(self.device, call), stream)


def prepare_forward(
    device: Device,
    config: KernelConfig,
    problem: AttentionProblem,
    *,
    lse: bool,
    compile_with: Compile = compile_kernel,
) -> PreparedForward:
    """Plans, compiles and loads `config` for `problem`, once a device."""
    key = (config, problem, lse)
    found: PreparedForward | None = device.prepared.get(key)
    if found is None:
        arch = get_arch(device.arch)
        config.require_buildable(arch)
        plan = make_plan(config, problem, lse=lse, sm_count=device.sm_count)
        # A new shape mostly runs a kernel that another shape has loaded: no look at the disk then.
        code = (config, plan.traits, compile_with)
        kernel = device.prepared.get(code) or compile_with(config, plan.traits, device.arch)
        require_fits(config.short_form(), kernel, plan.geometry, arch)
        found = PreparedForward(device, kernel, plan, device.prepare(kernel, plan.geometry))
        remember(device, code, kernel)
        remember(device, key, found)
    return found


def remember(device: Device, key: Hashable, value: object) -> None:
    """Keeps what was prepared for a device; everything is forgotten once it becomes too much."""
    if len(device.prepared) >= KEPT_PREPARED:
        device.prepared.clear()
    device.prepared[key] = value


def forward(
    device: Device,
    config: KernelConfig,
    problem: AttentionProblem,
    call: ForwardCall,
    *,
    stream: int = 0,
) -> None:
    """Computes attention on tensors of the device; returns before the GPU is done."""
    require_aligned(call)
    if is_empty(problem):
        fill_empty(device, problem, call, stream)
    else:
        prepare_forward(device, config, problem, lse=call.lse != 0)(call, stream)


def forward_arrays(
    device: Device,
    config: KernelConfig,
    problem: AttentionProblem,
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    lse: bool = False,
) -> tuple[NDArray[np.uint16], NDArray[np.float32] | None]:
    """O as 16-bit patterns and the LSE, from 4-D arrays of 16-bit elements in the host's memory."""
    shapes = tensor_shapes(problem)
    inputs = {"q": q, "k": k, "v": v}
    for name, array in inputs.items():
        if array.shape != shapes[name] or array.itemsize != problem.dtype.bytes:
            raise ArgumentError(
                f"{name} has shape {array.shape} and {array.itemsize}-byte elements; the problem "
                f"asks for {shapes[name]} and {problem.dtype.bytes}."
            )
    o_shape, rows = shapes["o"], lse_shape(problem)
    with tensors_on(device, problem, inputs, lse=lse) as call:
        forward(device, config, problem, call)
        o_bytes = device.download(call.o.address, 2 * math.prod(o_shape))
        lse_bytes = device.download(call.lse, 4 * math.prod(rows)) if lse else None
    o = o_bytes.view(np.uint16).reshape(o_shape)
    return o, None if lse_bytes is None else lse_bytes.view(np.float32).reshape(rows)


def require_aligned(call: ForwardCall) -> None:
    """Raises unless every row of every tensor begins at a multiple of 16 bytes."""
    for name in ("q", "k", "v", "o"):
        arg: TensorArg = getattr(call, name)
        strides = (arg.batch_stride, arg.seq_stride, arg.head_stride)
        if arg.address % 16 or any(stride % STRIDE_STEP for stride in strides):
            raise ArgumentError(
                f"{name} begins at {arg.address:#x} with strides {strides}; rows must begin at "
                f"multiples of 16 bytes, so strides are multiples of {STRIDE_STEP} elements."
            )


def is_empty(problem: AttentionProblem) -> bool:
    """Whether there is no output, or no key to look at."""
    return not (problem.batch and problem.heads and problem.q_len and problem.k_len)


def fill_empty(device: Device, problem: AttentionProblem, call: ForwardCall, stream: int) -> None:
    """Writes what no kernel is needed for: with no key, O is 0 and the LSE is -inf."""
    words = problem.d_head * problem.dtype.bytes // 4
    for batch in range(problem.batch):
        for head in range(problem.heads):
            offset = batch * call.o.batch_stride + head * call.o.head_stride
            device.fill(
                call.o.address + offset * problem.dtype.bytes,
                0,
                words,
                rows=problem.q_len,
                pitch_bytes=call.o.seq_stride * problem.dtype.bytes,
                stream=stream,
            )
    if call.lse:
        device.fill(call.lse, MINUS_INFINITY, math.prod(lse_shape(problem)), stream=stream)
