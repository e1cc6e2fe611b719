"""Every kernel there is, a class each; the rest of the package finds them here and names none."""

from __future__ import annotations

from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.sm80_forward.config import FlashForwardKernelConfig
from flashsmith.kernels.sm90_forward.config import Sm90ForwardConfig

CATALOGUE: tuple[type[KernelConfig], ...] = (
    FlashForwardKernelConfig,
    Sm90ForwardConfig,
)
