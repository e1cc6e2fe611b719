"""Roofline peaks of GPUs by name.

Sources: NVIDIA's data sheets and architecture white papers (A100, GA102, AD102, H100, H200, B200,
RTX Blackwell). Dense 16-bit tensor throughput with 32-bit accumulation; decimal units.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.arch.architecture import Arch, get


@dataclass(frozen=True, slots=True)
class Gpu:
    """What one product can do at its boost clock."""

    name: str
    arch_name: str
    sm_count: int
    tflops: float  # 10^12 dense FP16/BF16 operations a second, FP32 accumulate
    bandwidth_gb_s: float  # 10^9 bytes a second of DRAM

    @property
    def arch(self) -> Arch:
        """Its architecture's limits."""
        return get(self.arch_name)

    @property
    def ridge_flop_per_byte(self) -> float:
        """Operations a byte above which arithmetic and no longer memory is the bound."""
        return self.tflops * 1e3 / self.bandwidth_gb_s


GPUS: tuple[Gpu, ...] = (
    Gpu("A100", "sm_80", 108, 312.0, 2039.0),
    Gpu("RTX 3090", "sm_86", 82, 71.0, 936.2),
    Gpu("RTX 4090", "sm_89", 128, 165.2, 1008.0),
    Gpu("H100", "sm_90a", 132, 989.4, 3352.0),
    Gpu("H200", "sm_90a", 132, 989.4, 4800.0),
    Gpu("B200", "sm_100a", 148, 2250.0, 8000.0),
    Gpu("RTX 5090", "sm_120", 170, 209.5, 1792.0),
)


def find_gpu(device_name: str) -> Gpu | None:
    """The GPU that a driver's device name (`NVIDIA H200`) means, or None if it is not listed."""
    words = device_name.replace("-", " ").split()
    return next((gpu for gpu in GPUS if set(gpu.name.split()) <= set(words)), None)


def attainable_tflops(gpu: Gpu, flop_per_byte: float) -> float:
    """The roofline: the lower of the arithmetic peak and what memory can feed."""
    return min(gpu.tflops, gpu.bandwidth_gb_s * flop_per_byte / 1e3)
