"""What a case is: CUDA text, random inputs, a launch, and how two devices' outputs are compared."""
# ruff: noqa: E501 - a line of assembly stays one line

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PRELUDE = """
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
struct alignas(64) TensorMap { char bytes[128]; };
__device__ __forceinline__ u32 smem_address(const void* p) {
    return (u32)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void wait_parity(u32 barrier, u32 parity) {
    asm volatile("{\\n.reg .pred p;\\nW%=:\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n"
                 "@p bra D%=;\\nbra W%=;\\nD%=:\\n}" :: "r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void init_barrier(u32 barrier, u32 count) {
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(barrier), "r"(bytes) : "memory");
}
"""


@dataclass(frozen=True)
class Distance:
    """How far two outputs lie apart, in the unit the case states; 0 is equal bits."""

    value: float
    where: str = ""


Compare = Callable[[np.ndarray, np.ndarray], Distance]


@dataclass(frozen=True)
class Map:
    """A tensor map over one of the case's buffers (`buffer` -1: the output)."""

    buffer: int
    element_bytes: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int
    is_bf16: bool = True


@dataclass(frozen=True)
class Case:
    """`probe(inputs…, out, maps…)`, whose output must be the same on every device."""

    name: str
    instructions: str
    source: str
    inputs: tuple[np.ndarray, ...]
    out_bytes: int
    threads: int = 128
    grid: int = 1
    cluster: int = 1
    smem_bytes: int = 0
    maps: tuple[Map, ...] = ()
    scalars: tuple[bytes, ...] = ()
    entry: str = "probe"
    passes_inputs: bool = True  # else the kernel takes the inputs through its maps only
    passes_out: bool = True
    maps_first: bool = False
    compare: Compare = field(default=lambda a, b: same_bits(a, b))
    unit: str = "bits"
    allowed: float = 0.0


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> Distance:
    """The number of bytes that differ."""
    differ = np.flatnonzero(ours != theirs)
    if not len(differ):
        return Distance(0.0)
    at = int(differ[0])
    word = at // 8 * 8
    return Distance(
        float(len(differ)),
        f"byte {at}: emulator {ours[word : word + 8].tobytes()[::-1].hex()}, "
        f"CUDA {theirs[word : word + 8].tobytes()[::-1].hex()}",
    )


def same_floats(ours: np.ndarray, theirs: np.ndarray) -> Distance:
    """The number of float32 words that differ, any NaN being equal to any other."""
    a, b = ours.view(np.float32), theirs.view(np.float32)
    differ = (a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b))
    at = int(differ.argmax())
    where = f"word {at}: emulator {a[at]!r}, CUDA {b[at]!r}" if differ.any() else ""
    return Distance(float(differ.sum()), where)


def relative_to_largest(dtype: type) -> Compare:
    """Largest difference over the largest magnitude of the output: for sums in unknown order."""

    def compare(ours: np.ndarray, theirs: np.ndarray) -> Distance:
        a, b = ours.view(dtype).astype(np.float64), theirs.view(dtype).astype(np.float64)
        gap = np.abs(a - b)
        if not np.isfinite(gap).all():
            return Distance(float("inf"), "not finite")
        at = int(gap.argmax())
        largest = max(float(np.abs(b).max()), 1e-30)
        return Distance(float(gap[at]) / largest, f"element {at}: emulator {a[at]}, CUDA {b[at]}")

    return compare


def reals(accumulator: str) -> dict[str, Any]:
    """How sums of products are compared whose order of additions is not the hardware's."""
    wide = accumulator == "f32"
    return {
        "compare": relative_to_largest(np.float32 if wide else np.float16),
        "unit": "of the largest",
        "allowed": 2.0**-21 if wide else 2.0**-10,
    }


def small_integers_or_reals(rng: np.random.Generator, count: int, exact: bool) -> np.ndarray:
    """Numbers whose sums of products are exact in any order, or ordinary ones."""
    values = rng.integers(-4, 5, count) if exact else rng.standard_normal(count)
    return values.astype(np.float32)


def in_ulps(ours: np.ndarray, theirs: np.ndarray) -> Distance:
    """Largest distance of float32 numbers in units of the last place; NaN equals NaN."""
    a, b = ours.view(np.float32), theirs.view(np.float32)
    both_nan = np.isnan(a) & np.isnan(b)
    order = [_ordered(x.view(np.int32)) for x in (a, b)]
    gap = np.where(both_nan, 0, np.abs(order[0] - order[1]))
    at = int(gap.argmax())
    return Distance(float(gap[at]), f"word {at}: emulator {a[at]!r}, CUDA {b[at]!r}")


def _ordered(bits: np.ndarray) -> np.ndarray:
    wide = bits.astype(np.int64)
    return np.where(wide < 0, -(wide & 0x7FFFFFFF), wide)
