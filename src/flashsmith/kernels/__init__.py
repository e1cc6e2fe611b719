"""The configuration space: what one kernel is, as text, as C++ and as named sets."""

from typing import TYPE_CHECKING

from flashsmith.base.late_names import late_names

if TYPE_CHECKING:
    from flashsmith.kernels.catalogue import CATALOGUE
    from flashsmith.kernels.kernel import KernelConfig
    from flashsmith.kernels.parse import parse_config, parse_kernel_name_into_config
    from flashsmith.kernels.sets import get_kernel_configs, resolve_key
    from flashsmith.kernels.sm80_forward.config import FlashForwardKernelConfig
    from flashsmith.kernels.sm80_forward.sets import (
        get_autotuning_kernel_configs,
        get_kernel_progression_configs,
        get_kernels_to_build,
        should_autotune_config,
    )

__all__ = [
    "CATALOGUE",
    "FlashForwardKernelConfig",
    "KernelConfig",
    "get_autotuning_kernel_configs",
    "get_kernel_configs",
    "get_kernel_progression_configs",
    "get_kernels_to_build",
    "parse_config",
    "parse_kernel_name_into_config",
    "resolve_key",
    "should_autotune_config",
]

# A first call reads a few modules of this package; it imports no others.
__getattr__ = late_names(
    globals(),
    {
        "CATALOGUE": "flashsmith.kernels.catalogue",
        "FlashForwardKernelConfig": "flashsmith.kernels.sm80_forward.config",
        "KernelConfig": "flashsmith.kernels.kernel",
        "get_autotuning_kernel_configs": "flashsmith.kernels.sm80_forward.sets",
        "get_kernel_configs": "flashsmith.kernels.sets",
        "get_kernel_progression_configs": "flashsmith.kernels.sm80_forward.sets",
        "get_kernels_to_build": "flashsmith.kernels.sm80_forward.sets",
        "parse_config": "flashsmith.kernels.parse",
        "parse_kernel_name_into_config": "flashsmith.kernels.parse",
        "resolve_key": "flashsmith.kernels.sets",
        "should_autotune_config": "flashsmith.kernels.sm80_forward.sets",
    },
)
