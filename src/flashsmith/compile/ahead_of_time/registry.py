"""The static registry as C++: `flash_kernels.cuh`, one unit a configuration, and the host file."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.base.whole_file import named_in_errors
from flashsmith.compile.header_closure import INCLUDE_ROOT, header_closure
from flashsmith.compile.unit import kernel_entry, structs
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.problem.needs import Needs

HOST_ROOT = INCLUDE_ROOT.parent / "host"
HOST_FILES = ("flashsmith.h", "flashsmith.cu", "forward_kernel.cuh")
GENERAL = Needs(("causal", "lse", "ragged_q", "ragged_k", "narrow_d"))
# Four kernels a configuration: the two that are asked for most, bare, and two that compute every
# problem. The log-sum-exp divides these because it changes how a kernel adds up its rows: each
# problem gets the bits of the kernel made for it. The first that covers a problem runs it.
REGISTERED_NEEDS = (
    Needs(),
    Needs(("causal",)),
    Needs(("causal", "ragged_q", "ragged_k", "narrow_d")),
    GENERAL,
)


@dataclass(frozen=True, slots=True)
class WrittenRegistry:
    """The files of one registry."""

    folder: Path
    host_file: Path
    units: dict[KernelConfig, Path]


def write_registry(configs: Sequence[KernelConfig], folder: Path) -> WrittenRegistry:
    """Writes all that nvcc needs to build the registry into `folder`, headers included."""
    ordered = registry_configs(configs)
    with named_in_errors(folder):
        return _written(ordered, folder)


def _written(ordered: Sequence[KernelConfig], folder: Path) -> WrittenRegistry:
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    for name in (*HOST_FILES, ordered[0].HOST_HEADER):
        shutil.copyfile(HOST_ROOT / name, folder / name)
    (folder / "structs.cuh").write_text(_structs_header(ordered[0]))
    (folder / "flash_kernels.cuh").write_text(flash_kernels_header(ordered))
    units = {}
    for config in ordered:
        units[config] = folder / "kernels" / f"{config.identifier()}.cu"
        units[config].write_text(registry_unit(config))
        for name in header_closure(_structs_header(config) + registry_unit(config)):
            target = folder / "include" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(INCLUDE_ROOT / name, target)
    return WrittenRegistry(folder, folder / "flashsmith.cu", units)


def _structs_header(config: KernelConfig) -> str:
    """The structs that host and device share, written from the Python declarations."""
    return (
        f"// Structs of {config.NAME} that host and device share; written, do not edit.\n"
        f"#pragma once\n\n{structs(type(config))}"
    )


def registry_configs(configs: Sequence[KernelConfig]) -> list[KernelConfig]:
    """The configurations, sorted and each once; raises where one cannot be in a registry."""
    if not configs:
        raise ArgumentError("no configuration is given; a registry holds at least one; name a set.")
    for config in configs:
        config.require_buildable()
        if not config.HOST_HEADER:
            raise Unsupported(
                f"{config.short_form()}: a C library cannot start {config.NAME} "
                f"kernels; put it into a bundle (flashsmith build bundle)."
            )
    if len({config.CPP_TYPE for config in configs}) > 1:
        raise Unsupported(
            "configurations of several families are given; one registry holds one family; "
            "generate one for each."
        )
    return sorted(set(configs), key=astuple)


def flash_kernels_header(configs: Sequence[KernelConfig]) -> str:
    """The text of `flash_kernels.cuh`: the map from configuration to what starts its kernel."""
    first = configs[0]
    mapped = "\n".join(
        f"    // {c.short_form()}\n    {{{c.to_cpp_struct()},\n     &{c.identifier()}}},"
        for c in configs
    )
    named = "\n".join(f'    {{"{c.short_form()}",\n     {c.to_cpp_struct()}}},' for c in configs)
    declared = "\n".join(
        f"cudaError_t {c.identifier()}(const ForwardCall& call, cudaStream_t stream);"
        for c in configs
    )
    return f"""\
// The kernels of {len(configs)} configurations, found by configuration. Written by
// `flashsmith build registry`: change the set and generate again, do not edit.
#pragma once

#include <map>

#include "{first.HOST_HEADER}"

// What flashsmith.h calls a configuration.
struct flashsmith_registered {{
    const char* short_form;
    {first.CPP_TYPE} config;
}};

namespace flashsmith::host {{

{declared}

inline const std::map<{first.CPP_TYPE}, forward_kernel_fn> forward_kernels = {{
{mapped}
}};

inline constexpr flashsmith_registered registered[] = {{
{named}
}};

}}  // namespace flashsmith::host
"""


def registry_unit(config: KernelConfig) -> str:
    """The unit of one configuration: its kernels, and the function that starts the right one."""
    kernels = [
        f"constexpr flashsmith::Needs kNeeds{i} =\n    {needs.to_cpp()};\n"
        + kernel_entry(config, needs, f"kNeeds{i}")
        for i, needs in enumerate(REGISTERED_NEEDS)
    ]
    table = "\n".join(
        f"        {{kNeeds{i}, reinterpret_cast<const void*>(&{config.kernel_name(needs)})}},"
        for i, needs in enumerate(REGISTERED_NEEDS)
    )
    body = "\n".join(kernels)
    return f"""\
// {config.short_form()}
#include "structs.cuh"

#include "{config.HEADER}"
#include "{config.HOST_HEADER}"

constexpr {config.CPP_TYPE} kConfig =
    {config.to_cpp_struct()};

{body}
namespace flashsmith::host {{

cudaError_t {config.identifier()}(const ForwardCall& call, cudaStream_t stream) {{
    static const CompiledNeeds kernels[] = {{
{table}
    }};
    return launch(kConfig, kernels, call, stream);
}}

}}  // namespace flashsmith::host
"""
