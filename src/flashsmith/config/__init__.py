"""The configuration space: what one kernel is, as text, as C++ and as named sets."""

from flashsmith.config.families import FAMILIES
from flashsmith.config.forward import FlashForwardKernelConfig
from flashsmith.config.forward_sets import (
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
    should_autotune_config,
)
from flashsmith.config.kernel_config import KernelConfig
from flashsmith.config.parse import parse_config, parse_kernel_name_into_config
from flashsmith.config.sets import get_kernel_configs, resolve_key
from flashsmith.config.traits import ForwardTraits

__all__ = [
    "FAMILIES",
    "FlashForwardKernelConfig",
    "ForwardTraits",
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
