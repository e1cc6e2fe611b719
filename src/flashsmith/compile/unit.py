"""The one translation unit of a kernel: where a Python configuration becomes C++ text."""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.kernels.kernel import KernelConfig
from flashsmith.problem.needs import ForwardTraits


@dataclass(frozen=True, slots=True)
class UnitOptions:
    """How a unit is compiled beyond what it says; part of its cache key."""

    line_info: bool = False  # source lines in profilers
    debug: bool = False  # unoptimised, with symbols for cuda-gdb

    def flags(self) -> tuple[str, ...]:
        """The NVRTC options that these mean."""
        return (*(["-lineinfo"] if self.line_info else []), *(["-G"] if self.debug else []))


def unit_source(config: KernelConfig, traits: ForwardTraits) -> str:
    """The text NVRTC compiles for `config` computing `traits`; its entry is the kernel's name."""
    return (
        f"// {config.short_form()} | {traits.identifier()}\n"
        f'#include "{config.HEADER}"\n\n'
        f"inline constexpr {config.CPP_TYPE} kConfig =\n    {config.to_cpp_struct()};\n"
        f"inline constexpr flashsmith::ForwardTraits kTraits =\n    {traits.to_cpp_struct()};\n\n"
        + kernel_entry(config, traits, "kTraits")
    )


def kernel_entry(config: KernelConfig, traits: ForwardTraits, traits_constant: str) -> str:
    """The `extern "C"` kernel, in a unit that defines `kConfig` and the constant of its traits."""
    return (
        f'extern "C" __global__ void __launch_bounds__(kConfig.threads(), kConfig.min_blocks())\n'
        f"    {config.kernel_name(traits)}(__grid_constant__ const {config.CPP_ARGS} args) {{\n"
        f"    {config.CPP_ENTRY}<kConfig, {traits_constant}>(args);\n"
        f"}}\n"
    )
