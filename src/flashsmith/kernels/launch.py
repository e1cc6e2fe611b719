"""What a launch needs, whichever family the kernel is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from flashsmith.problem.needs import ForwardTraits


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """A TMA tensor map in the terms of cuTensorMapEncodeTiled; innermost dimension first."""

    address: int
    element_bytes: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]  # of dimensions 1 and up
    box: tuple[int, ...]
    swizzle_bytes: int = 128  # 0 (none), 32, 64 or 128
    is_bf16: bool = True
    l2_promotion_bytes: int = 256


@dataclass(frozen=True, slots=True)
class LaunchGeometry:
    """Blocks, threads and shared memory of one launch."""

    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int
    cluster: int = 1


@dataclass(frozen=True, slots=True)
class TensorArg:
    """Where a 4-D tensor lies; strides count elements, the d_head stride is 1."""

    address: int
    batch_stride: int
    seq_stride: int
    head_stride: int


@dataclass(frozen=True, slots=True)
class ForwardCall:
    """The tensors of one forward call; `lse` is 0 when no log-sum-exp is wanted."""

    q: TensorArg
    k: TensorArg
    v: TensorArg
    o: TensorArg
    lse: int = 0  # float32 (batch, heads, q_len), contiguous
    workspace: int = 0  # `workspace_bytes` that the device keeps for launches, if the plan asks


class MapEncoder(Protocol):
    """What knows how tensor maps look on its hardware: a device."""

    def tensor_map(self, spec: TensorMapSpec) -> bytes:
        """The 128 bytes that a kernel takes as a tensor map."""


class LaunchPlan(Protocol):
    """A problem laid out for one kernel; depends on shapes, not on addresses."""

    @property
    def traits(self) -> ForwardTraits:
        """The compile-time facts of the problem: with the configuration they name the kernel."""

    @property
    def geometry(self) -> LaunchGeometry:
        """Blocks, threads, shared memory, cluster."""

    @property
    def workspace_bytes(self) -> int:
        """Device memory of a launch, or 0; counters at its start are found zero and left so."""

    @property
    def ends_together(self) -> bool:
        """Whether tiles are split so that no block waits for the others' last wave."""

    @property
    def sum_order(self) -> str:
        """What of this launch decides, beside the configuration, in which order sums are taken."""

    def params(self, device: MapEncoder, call: ForwardCall) -> tuple[bytes, ...]:
        """The kernel's parameters as raw bytes, one item a parameter."""
