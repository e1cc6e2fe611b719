"""The one translation unit of a kernel: where a Python configuration becomes C++ text."""

from __future__ import annotations

from typing import NamedTuple

from flashsmith.base.errors import Unsupported
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.problem.needs import Needs


class UnitOptions(NamedTuple):
    """How a unit is compiled beyond what it says; part of its cache key."""

    line_info: bool = False  # source lines in profilers
    debug: bool = False  # unoptimised, with symbols for cuda-gdb

    def flags(self) -> tuple[str, ...]:
        """The NVRTC options that these mean."""
        return (*(["-lineinfo"] if self.line_info else []), *(["-G"] if self.debug else []))


def unit_source(config: KernelConfig, needs: Needs) -> str:
    """The text NVRTC compiles for `config` computing `needs`; its entry is the kernel's name."""
    if not config.CPP_ENTRY:
        parts = ", ".join(f'"{part.short_form()}"' for part in config.kernels())
        raise Unsupported(
            f"{config.short_form()}: this is a plan of several kernels; name one of them: {parts}."
        )
    return (
        f"// {config.short_form()} | {needs.identifier()}\n"
        f"{structs(type(config))}\n"
        f'#include "{config.HEADER}"\n\n'
        f"inline constexpr {config.CPP_TYPE} kConfig =\n    {config.to_cpp_struct()};\n"
        f"inline constexpr flashsmith::Needs kNeeds =\n    {needs.to_cpp()};\n\n"
        + kernel_entry(config, needs, "kNeeds")
    )


def structs(kernel: type[KernelConfig]) -> str:
    """The structs that C++ shares with Python: configuration, needs and arguments of a kernel."""
    included = "\n".join(f'#include "{header}"' for header in kernel.PRELUDE)
    body = "\n\n".join([kernel.cpp_struct(), Needs.cpp_struct(), kernel.ARGUMENTS.cpp_struct()])
    return f"{included}\n\nnamespace flashsmith {{\n\n{body}\n\n}}  // namespace flashsmith\n"


def kernel_entry(config: KernelConfig, needs: Needs, needs_constant: str) -> str:
    """The `extern "C"` kernel, in a unit that defines `kConfig` and the constant of its needs."""
    return (
        f'extern "C" __global__ void __launch_bounds__(kConfig.threads(), kConfig.min_blocks())\n'
        f"    {config.kernel_name(needs)}"
        f"(__grid_constant__ const {config.ARGUMENTS.CPP_TYPE} args) {{\n"
        f"    {config.CPP_ENTRY}<kConfig, {needs_constant}>(args);\n"
        f"}}\n"
    )
