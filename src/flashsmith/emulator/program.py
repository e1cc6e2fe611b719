"""A loaded kernel, and its launch over a grid of ctas."""

from __future__ import annotations

import time
from functools import lru_cache

import numpy as np

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.checks.counters import Counters
from flashsmith.emulator.checks.launch_checks import (
    check_geometry,
    param_buffer,
    resident_ctas,
)
from flashsmith.emulator.checks.wgmma_pipeline import Problem, pipeline_problems
from flashsmith.emulator.machine.chunk import Chunk
from flashsmith.emulator.machine.emit import BAD_OPERANDS
from flashsmith.emulator.machine.opcode import opcode_of
from flashsmith.emulator.machine.processes import process_count, run_all
from flashsmith.emulator.machine.scheduler import Scheduler
from flashsmith.emulator.machine.translate import Translation, translate
from flashsmith.emulator.memory import GlobalMemory
from flashsmith.emulator.options import EmulatorOptions, LaunchReport, LaunchSetup
from flashsmith.emulator.ordering.traits import traits_of
from flashsmith.emulator.ptx.instruction import Symbol
from flashsmith.emulator.ptx.module import Kernel
from flashsmith.emulator.ptx.parse import parse_kernel

SM_COUNT = 132  # of an H200


@lru_cache(maxsize=64)
def load(ptx: str, entry: str | None = None) -> Program:
    """The kernel of a PTX text, translated; the same text is translated once."""
    return Program(parse_kernel(ptx, entry))


class Program:
    """One kernel that can be launched."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.translation = translate(kernel)
        self._fine: Translation | None = None
        self._wgmma_problems: list[Problem] | None = None
        self.traits = traits_of(kernel)
        self._referenced = {
            symbol.name
            for instruction in kernel.instructions
            for operand in instruction.operands
            if isinstance(symbol := getattr(operand, "base", operand), Symbol)
        }

    def launch(
        self,
        grid: tuple[int, int, int],
        threads: int,
        smem_bytes: int,
        params: tuple[bytes, ...],
        memory: GlobalMemory,
        *,
        cluster: int = 1,
        options: EmulatorOptions | None = None,
        registers: int | None = None,
        sm_count: int = SM_COUNT,
    ) -> LaunchReport:
        """Runs the kernel on every cta of the grid; faults are raised as EmulationError.

        `registers` is what the compiled kernel uses a thread, where that is known. Ctas that can
        wait for each other run together as far as `sm_count` SMs hold them, the others after.
        """
        options = options or EmulatorOptions()
        started = time.perf_counter()
        translation = self._translation(options)
        buffer = param_buffer(self.kernel, params)
        check_geometry(
            self.kernel, grid, threads, smem_bytes,
            static_bytes=translation.static_smem_bytes, cluster=cluster, registers=registers,
            sm_count=sm_count,
        )  # fmt: skip
        if options.checks:
            self._check_wgmma_registers()
        symbols, held = self._module_variables(memory)
        setup = LaunchSetup(
            self.kernel, grid, threads, translation.static_smem_bytes + smem_bytes, smem_bytes,
            buffer, memory, symbols, translation.local_bytes, options, cluster, sm_count,
            self.traits,
        )  # fmt: skip
        try:
            with np.errstate(all="ignore"):
                results = self._run_all(setup, registers)
        finally:
            for address in held:
                memory.free(address)
        executed = sum(count for count, _ in results)
        counters = _sum([part for _, part in results if part is not None])
        seconds = time.perf_counter() - started
        return LaunchReport(self.kernel.name, setup.ctas, threads, seconds, executed, counters)

    def _run_all(
        self, setup: LaunchSetup, registers: int | None
    ) -> list[tuple[int, Counters | None]]:
        """Runs every cta; ctas that do not communicate in chunks, one after another."""
        ctas, options = setup.ctas, setup.options
        step, together = max(1, options.chunk_lanes // (32 * -(-setup.threads // 32))), ctas
        if self.traits.communicates:  # all are one chunk, and as many as fit begin
            step, together = ctas, resident_ctas(setup, registers)
        step, together = (max(1, n // setup.cluster) * setup.cluster for n in (step, together))

        def run(first: int) -> tuple[int, Counters | None]:
            end = min(first + step, ctas)
            begin = min(first + together, end)
            chunk = Chunk(setup, np.arange(first, begin), range(begin, end))
            found = self._run(chunk, options), chunk.counters
            chunk.release()
            return found

        firsts = range(0, ctas, step)
        processes = process_count(self.traits.communicates, len(firsts), options.processes)
        return run_all(run, firsts, processes, at_once=options.processes is not None)

    def _check_wgmma_registers(self) -> None:
        """Raises the first misuse of registers around wgmma; found once, without running."""
        if self._wgmma_problems is None:
            self._wgmma_problems = pipeline_problems(self.translation.segments)
        for problem in self._wgmma_problems[:1]:
            where = problem.instruction
            raise EmulationError(
                problem.kind,
                f"{problem.message} in `{where.text[:100]}`",
                kernel=self.kernel.name,
                line=where.line,
            )

    def _translation(self, options: EmulatorOptions) -> Translation:
        """Random schedules need segments that end after each access to memory."""
        if options.seed is None:
            return self.translation
        if self._fine is None:
            self._fine = translate(self.kernel, fine=True)
        return self._fine

    def _run(self, chunk: Chunk, options: EmulatorOptions) -> int:
        """Runs the ctas of a chunk to their end; returns how many warp instructions that took."""
        translation = self._translation(options)
        scheduler = Scheduler(
            chunk, translation.functions, options.seed, translation.segments, translation.registers
        )
        chunk.live = translation.live
        chunk.lines = [segment.instructions[0].line for segment in translation.segments]
        try:
            scheduler.run()
        except BAD_OPERANDS as error:
            raise self._misfit(error, translation) from error
        executed = 0
        for segment, count in zip(translation.segments, scheduler.counts, strict=True):
            executed += count * len(segment.instructions)
            if chunk.counters is not None and count:
                for instruction in segment.instructions:
                    chunk.counters.instructions[opcode_of(instruction).counts_as] += count
        return executed

    def _misfit(self, error: Exception, translation: Translation) -> EmulationError:
        """The fault of an instruction whose operands make no sense, at its line."""
        line, frame = self.kernel.line, error.__traceback__
        while frame is not None:
            if frame.tb_frame.f_code.co_filename == f"<{self.kernel.name}>":
                line = translation.line_of[frame.tb_lineno - 1]
            frame = frame.tb_next
        message = f"this instruction cannot run as it stands ({type(error).__name__}: {error})"
        return EmulationError("bad PTX", message, kernel=self.kernel.name, line=line)

    def _module_variables(self, memory: GlobalMemory) -> tuple[dict[str, np.uint64], list[int]]:
        """Addresses of .global and .const variables for one launch."""
        symbols: dict[str, np.uint64] = {}
        held = []
        for variable in self.kernel.variables.values():
            if variable.space not in ("global", "const") or variable.name not in self._referenced:
                continue
            address = memory.allocate(variable.n_bytes)
            held.append(address)
            memory.write(address, np.frombuffer(variable.initial, np.uint8))
            symbols[variable.name] = np.uint64(address)
        return symbols, held


def _sum(parts: list[Counters]) -> Counters | None:
    """The counters of all chunks together, or None when nothing was counted."""
    if not parts:
        return None
    total = Counters()
    for part in parts:
        total.add(part)
    return total
