"""Every kernel family there is; the rest of the package finds them here and names none."""

from __future__ import annotations

from flashsmith.config.forward import FlashForwardKernelConfig
from flashsmith.config.hopper import HopperForwardKernelConfig
from flashsmith.config.kernel_config import KernelConfig

FAMILIES: tuple[type[KernelConfig], ...] = (
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
)
