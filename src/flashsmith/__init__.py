"""Flash-attention kernels that are configured, built, verified, tuned and explained from Python."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from flashsmith.base.dtypes import DType
from flashsmith.base.late_names import late_names

if TYPE_CHECKING:
    from flashsmith.api.ahead.warmup import Warmed, warmup
    from flashsmith.api.attention import flash_attention
    from flashsmith.api.caches.kv_cache import flash_attn_with_kvcache
    from flashsmith.api.dropins import (
        flash_attn_func,
        flash_attn_varlen_func,
        scaled_dot_product_attention,
    )
    from flashsmith.api.gradients import flash_attention_backward
    from flashsmith.api.notices import FlashsmithWarning
    from flashsmith.api.stacked import (
        flash_attn_kvpacked_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_kvpacked_func,
        flash_attn_varlen_qkvpacked_func,
    )
    from flashsmith.api.workspace import workspace_bytes
    from flashsmith.kernels import (
        FlashForwardKernelConfig,
        get_autotuning_kernel_configs,
        get_kernel_configs,
        get_kernel_progression_configs,
        get_kernels_to_build,
        parse_kernel_name_into_config,
        should_autotune_config,
    )
    from flashsmith.problem.attention import AttentionProblem
    from flashsmith.tuner.choose.choice import Choice, choose
    from flashsmith.tuner.run.machines import Machines
    from flashsmith.tuner.run.tune import Tuned, tune

__version__ = "0.1.0"

# Public names whose modules are imported when the name is first used: `import flashsmith` is quick.
_LAZY = {
    "AttentionProblem": "flashsmith.problem.attention",
    "Choice": "flashsmith.tuner.choose.choice",
    "FlashForwardKernelConfig": "flashsmith.kernels",
    "FlashsmithWarning": "flashsmith.api.notices",
    "Machines": "flashsmith.tuner.run.machines",
    "Tuned": "flashsmith.tuner.run.tune",
    "Warmed": "flashsmith.api.ahead.warmup",
    "choose": "flashsmith.tuner.choose.choice",
    "flash_attention": "flashsmith.api.attention",
    "flash_attention_backward": "flashsmith.api.gradients",
    "flash_attn_func": "flashsmith.api.dropins",
    "flash_attn_kvpacked_func": "flashsmith.api.stacked",
    "flash_attn_qkvpacked_func": "flashsmith.api.stacked",
    "flash_attn_varlen_func": "flashsmith.api.dropins",
    "flash_attn_varlen_kvpacked_func": "flashsmith.api.stacked",
    "flash_attn_varlen_qkvpacked_func": "flashsmith.api.stacked",
    "flash_attn_with_kvcache": "flashsmith.api.caches.kv_cache",
    "get_autotuning_kernel_configs": "flashsmith.kernels",
    "get_kernel_configs": "flashsmith.kernels",
    "get_kernel_progression_configs": "flashsmith.kernels",
    "get_kernels_to_build": "flashsmith.kernels",
    "parse_kernel_name_into_config": "flashsmith.kernels",
    "scaled_dot_product_attention": "flashsmith.api.dropins",
    "should_autotune_config": "flashsmith.kernels",
    "tune": "flashsmith.tuner.run.tune",
    "warmup": "flashsmith.api.ahead.warmup",
    "workspace_bytes": "flashsmith.api.workspace",
}

__all__ = [
    "AttentionProblem",
    "Choice",
    "DType",
    "FlashForwardKernelConfig",
    "FlashsmithWarning",
    "Machines",
    "Tuned",
    "Warmed",
    "choose",
    "flash_attention",
    "flash_attention_backward",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "get_autotuning_kernel_configs",
    "get_kernel_configs",
    "get_kernel_progression_configs",
    "get_kernels_to_build",
    "parse_kernel_name_into_config",
    "scaled_dot_product_attention",
    "should_autotune_config",
    "tune",
    "warmup",
    "workspace_bytes",
]


__getattr__ = late_names(globals(), _LAZY)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


# Beside torch the operators are there at once: an exported program names them.
if hasattr(sys.modules.get("torch"), "library"):
    import_module("flashsmith.torch_op.operator")
