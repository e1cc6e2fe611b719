"""A loaded kernel, and its launch over a grid of blocks."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import numpy as np

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.chunk import Chunk
from flashsmith.emulator.counters import Counters
from flashsmith.emulator.memory import GlobalMemory
from flashsmith.emulator.opcode import OPCODES
from flashsmith.emulator.options import EmulatorOptions, LaunchReport
from flashsmith.emulator.ptx.instruction import Symbol
from flashsmith.emulator.ptx.module import Kernel
from flashsmith.emulator.ptx.parse import parse_kernel
from flashsmith.emulator.scheduler import Scheduler
from flashsmith.emulator.segments import meeting_points
from flashsmith.emulator.translate import Translation, translate
from flashsmith.emulator.wgmma_pipeline import Problem, pipeline_problems

MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_THREADS = 1024


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
    ) -> LaunchReport:
        """Runs the kernel on every block of the grid; faults are raised as EmulationError."""
        options = options or EmulatorOptions()
        started = time.perf_counter()
        buffer = self._param_buffer(params)
        self._check_geometry(grid, threads, smem_bytes, cluster)
        if options.checks:
            self._check_wgmma_registers()
        counters = Counters() if options.counters else None
        blocks = grid[0] * grid[1] * grid[2]
        symbols, held = self._module_variables(memory)
        step = max(1, options.chunk_lanes // (32 * -(-threads // 32)) // cluster) * cluster
        executed = 0
        with np.errstate(all="ignore"):
            for first in range(0, blocks, step):
                chunk = Chunk(
                    self.kernel,
                    blocks=np.arange(first, min(first + step, blocks)),
                    grid=grid,
                    threads=threads,
                    smem_bytes=self._translation(options).static_smem_bytes + smem_bytes,
                    dynamic_bytes=smem_bytes,
                    params=buffer,
                    memory=memory,
                    symbols=symbols,
                    local_bytes=self._translation(options).local_bytes,
                    options=options,
                    cluster=cluster,
                )
                executed += self._run(chunk, counters, options)
        for address in held:
            memory.free(address)
        return LaunchReport(
            self.kernel.name, blocks, threads, time.perf_counter() - started, executed, counters
        )

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

    def _run(self, chunk: Chunk, counters: Counters | None, options: EmulatorOptions) -> int:
        translation = self._translation(options)
        scheduler = Scheduler(
            chunk, translation.functions, translation.live_in, options.seed,
            meeting_points(translation.segments),
        )  # fmt: skip
        units = chunk.first_units(translation.registers, options.seed is not None)
        scheduler.run(units)
        executed = 0
        for segment, count in zip(translation.segments, scheduler.counts, strict=True):
            executed += count * len(segment.instructions)
            if counters is not None and count:
                for instruction in segment.instructions:
                    counters.instructions[OPCODES[instruction.opcode].counts_as] += count
        if counters is not None and chunk.counters is not None:
            counters.add(chunk.counters)
        return executed

    def _param_buffer(self, params: tuple[bytes, ...]) -> bytes:
        kernel = self.kernel
        if len(params) != len(kernel.params):
            raise EmulationError(
                "wrong parameters",
                f"{len(params)} parameters given, the kernel takes {len(kernel.params)}",
                kernel=kernel.name,
                line=kernel.line,
            )
        buffer = bytearray(kernel.param_bytes)
        for number, (given, param) in enumerate(zip(params, kernel.params, strict=True)):
            if len(given) != param.n_bytes:
                raise EmulationError(
                    "wrong parameters",
                    f"parameter {number} has {len(given)} bytes, the kernel takes {param.n_bytes}",
                    kernel=kernel.name,
                    line=kernel.line,
                )
            buffer[param.offset : param.offset + param.n_bytes] = given
        return bytes(buffer)

    def _check_geometry(
        self, grid: tuple[int, int, int], threads: int, smem_bytes: int, cluster: int
    ) -> None:
        kernel = self.kernel
        problem = ""
        for size, limit, axis in zip(grid, MAX_GRID, "xyz", strict=True):
            if not 1 <= size <= limit:
                problem = f"a grid of {size:,} blocks along {axis}; 1 to {limit:,} are possible"
        if not 1 <= threads <= MAX_THREADS:
            problem = f"{threads} threads a block; 1 to {MAX_THREADS} are possible"
        elif kernel.max_threads and threads > kernel.max_threads:
            problem = f"{threads} threads a block; .maxntid of the kernel is {kernel.max_threads}"
        elif smem_bytes < 0:
            problem = f"{smem_bytes} bytes of dynamic shared memory; 0 or more are possible"
        elif grid[0] % cluster:
            problem = f"a grid of {grid[0]} blocks along x for clusters of {cluster}"
        if problem:
            raise EmulationError("bad launch", problem, kernel=kernel.name, line=kernel.line)

    def _module_variables(self, memory: GlobalMemory) -> tuple[dict[str, Any], list[int]]:
        """Addresses of .global and .const variables for one launch."""
        symbols: dict[str, Any] = {}
        held = []
        for variable in self.kernel.variables.values():
            if variable.space not in ("global", "const") or variable.name not in self._referenced:
                continue
            address = memory.allocate(variable.n_bytes)
            held.append(address)
            memory.write(address, np.frombuffer(variable.initial, np.uint8))
            symbols[variable.name] = np.uint64(address)
        return symbols, held
