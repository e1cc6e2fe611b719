"""What ptxas says of a kernel, read from the log of `--ptxas-options=-v`."""

from __future__ import annotations

import re

from flashsmith.base.errors import DamagedFile
from flashsmith.compile.artefact import Resources

_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SMEM = re.compile(r"(\d+) bytes smem")
# "ptxas warning : …", "ptxas info : (C7510) Potential Performance Loss: …", front-end warnings.
_REMARK = re.compile(r"warning|\(C\d{4}\)")


def parse_resources(log: str, kernel: str) -> Resources:
    """The figures of `kernel`, the one entry of the unit; functions it calls are added in."""
    frames = [tuple(int(n) for n in found) for found in _FRAME.findall(log)]
    used = [(int(registers), rest) for registers, rest in _USED.findall(log)]
    if not frames or not used:
        raise DamagedFile(
            f"{kernel}: the compiler's log states no registers and no stack; it is written by "
            f"--ptxas-options=-v; compile with another NVRTC (FLASHSMITH_NVRTC)."
        )
    rest = " ".join(text for _, text in used)
    return Resources(
        registers=max(registers for registers, _ in used),
        spill_store_bytes=sum(stores for _, stores, _ in frames),
        spill_load_bytes=sum(loads for _, _, loads in frames),
        stack_bytes=max(stack for stack, _, _ in frames),
        static_smem_bytes=max((int(n) for n in _SMEM.findall(rest)), default=0),
        barriers=max((int(n) for n in _BARRIERS.findall(rest)), default=0),
        warnings=_remarks(log),
    )


def _remarks(log: str) -> tuple[str, ...]:
    found = [" ".join(line.split()) for line in log.splitlines() if _REMARK.search(line)]
    return tuple(dict.fromkeys(found))
