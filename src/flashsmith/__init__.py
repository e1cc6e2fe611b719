"""Flash-attention kernels that are configured, built, verified, tuned and explained from Python."""

from flashsmith.base.dtypes import DType
from flashsmith.config import (
    FlashForwardKernelConfig,
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
    parse_kernel_name_into_config,
    should_autotune_config,
)

__version__ = "0.1.0"

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
