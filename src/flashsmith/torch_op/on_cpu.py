"""What computes tensors on the CPU: torch's own attention, unless the emulator is asked for."""

from __future__ import annotations

from flashsmith.api.options import CallOptions
from flashsmith.base import settings
from flashsmith.tuner.choose.choice import Choice

TORCH_RUNS = Choice(None, "torch", "CPU tensors go to torch's own attention")


def is_emulated(options: CallOptions) -> bool:
    """Whether CPU tensors go to flashsmith's kernels: the call or FLASHSMITH_DEVICE says so."""
    return (options.backend or settings.device_name()) == "emulator"
