"""The names of the original system's configuration module, and where they come from here."""

from flashsmith.base.dtypes import DType
from flashsmith.kernels import (
    FlashForwardKernelConfig,
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
    parse_kernel_name_into_config,
    should_autotune_config,
)

__all__ = [
    "DType",
    "FlashForwardKernelConfig",
    "get_autotuning_kernel_configs",
    "get_kernel_configs",
    "get_kernel_progression_configs",
    "get_kernels_to_build",
    "parse_kernel_name_into_config",
    "should_autotune_config",
]
