"""What a set of configurations becomes on a set of architectures: figures, or why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashsmith.arch import Arch
from flashsmith.arch.occupancy import occupancy
from flashsmith.base.errors import CompileError, FlashsmithError, OutOfResources, Unsupported
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.cache.kernel_cache import KernelCache
from flashsmith.compile.compiler import DEFAULT_OPTIONS, CompileJob, compile_many
from flashsmith.compile.unit import UnitOptions
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.problem.needs import Needs


@dataclass(frozen=True, slots=True)
class SurveyRow:
    """One configuration on one architecture; without a kernel, `reason` says why."""

    config: KernelConfig
    arch: Arch
    kernel: CompiledKernel | None = None
    same_as: KernelConfig | None = None  # the first of the set with equal machine code
    reason: str = ""
    failed: bool = False  # it should have compiled and did not

    def as_flat(self) -> dict[str, object]:
        """The row as tables, JSON and records show it."""
        flat: dict[str, object] = {"config": self.config.short_form(), "arch": self.arch.name}
        kernel = self.kernel
        used = kernel.resources if kernel else None
        flat["registers"] = used.registers if used else None
        flat["spill_bytes"] = used.spill_bytes if used else None
        flat["smem_bytes"] = self.config.smem_bytes()
        flat["blocks_per_sm"] = self.blocks_per_sm()
        flat["code"] = kernel.code if kernel else None
        flat["compile_s"] = round(kernel.compile_seconds, 3) if kernel else None
        flat["same_as"] = self.same_as.short_form() if self.same_as else None
        flat["note"] = self.reason or "; ".join(used.warnings if used else ()) or None
        return flat

    def blocks_per_sm(self) -> int | None:
        """Blocks that one SM holds, by the compiler's register count."""
        if self.kernel is None:
            return None
        return occupancy(
            self.arch,
            threads=self.config.threads,
            registers=self.kernel.resources.registers,
            smem_bytes=self.config.smem_bytes() + self.kernel.resources.static_smem_bytes,
        ).blocks


def survey(
    configs: Sequence[KernelConfig],
    needs: Needs,
    arches: Sequence[Arch],
    *,
    options: UnitOptions = DEFAULT_OPTIONS,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    cache: KernelCache | None = None,
) -> list[SurveyRow]:
    """Compiles the kernels of every configuration for every architecture that they fit."""
    kernels = dict.fromkeys(kernel for config in configs for kernel in config.kernels())
    pairs = [(kernel, arch) for arch in arches for kernel in kernels]
    reasons = {pair: why_not(*pair) for pair in pairs}
    fitting = [pair for pair in pairs if not reasons[pair]]
    jobs = [CompileJob(config, needs, arch.name, options) for config, arch in fitting]
    made = dict(
        zip(
            fitting,
            compile_many(jobs, workers=workers, progress=progress, cache=cache),
            strict=True,
        )
    )
    first: dict[tuple[str, str], KernelConfig] = {}
    return [_row(pair, reasons[pair], made.get(pair), first) for pair in pairs]


def why_not(config: KernelConfig, arch: Arch) -> str:
    """Why `config` cannot be built for `arch`, or an empty text."""
    try:
        config.require_buildable(arch)
    except (OutOfResources, Unsupported) as error:
        return _without_name(error, config)
    return ""


def _without_name(error: FlashsmithError, config: KernelConfig) -> str:
    return str(error).removeprefix(f"{config.short_form()}: ")


def _row(
    pair: tuple[KernelConfig, Arch],
    reason: str,
    made: CompiledKernel | FlashsmithError | None,
    first: dict[tuple[str, str], KernelConfig],
) -> SurveyRow:
    config, arch = pair
    if made is None:
        return SurveyRow(config, arch, reason=reason)
    if isinstance(made, Unsupported):
        return SurveyRow(config, arch, reason=_without_name(made, config))
    if isinstance(made, CompileError):
        return SurveyRow(config, arch, reason=str(made), failed=True)
    if isinstance(made, FlashsmithError):
        raise made  # a missing compiler or a full disk is no property of one row
    same = first.setdefault((arch.name, made.code), config)
    return SurveyRow(config, arch, made, same_as=None if same == config else same)
