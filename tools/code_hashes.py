"""Lists the machine code of many kernels as hashes, and says which of them a change touched.

    python tools/code_hashes.py write FILE     # before the change
    python tools/code_hashes.py compare FILE   # after it: exit 1 where machine code differs
    python tools/code_hashes.py shipped        # exit 1 where a shipped row is stale

Kernels: those that the shipped measurements choose, and the sets of `SETS`, each for three kinds of
problem. A list belongs to the compiler that made it; FLASHSMITH_NVRTC names another one. Kernels
come from the kernel cache where they are there.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from flashsmith.base.errors import FlashsmithError, Unsupported
from flashsmith.compile.ahead_of_time.registry import GENERAL
from flashsmith.compile.compiler import CompileJob, compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels import get_kernel_configs, parse_config
from flashsmith.problem.needs import NEEDS, Needs
from flashsmith.problem.text import problem_text
from flashsmith.tuner.choose.measured import SHIPPED_FOLDER
from flashsmith.tuner.choose.shipped_kernels import shipped_jobs
from flashsmith.tuner.store.exchange import read_lines
from flashsmith.tuner.store.stale import Standing, standings

SETS = (("all", "sm_90a"), ("all", "sm_80"), ("hopper", "sm_90a"), ("hopper-prog", "sm_90a"))
LETTERS = 16  # of a hash: enough to tell a thousand kernels apart
KINDS = (Needs(), Needs(("causal",)), GENERAL)


def listed_jobs() -> list[CompileJob]:
    """The kernels of the list, each once."""
    jobs = [job for of_arch in shipped_jobs().values() for job in of_arch]
    for key, arch in SETS:
        jobs += [CompileJob(c, kind, arch) for c in get_kernel_configs(key) for kind in KINDS]
    return list(dict.fromkeys(jobs))


def hashes() -> dict[CompileJob, str]:
    """Of every kernel the hash of the machine code, or `refused`."""
    jobs = listed_jobs()
    found = {}
    for job, kernel in zip(jobs, compile_many(jobs, progress=_show), strict=True):
        if isinstance(kernel, Unsupported):
            code = "refused"
        elif isinstance(kernel, FlashsmithError):
            raise kernel
        else:
            code = kernel.code[:LETTERS]
        found[job] = code
    return found


def text_of(job: CompileJob) -> str:
    """A kernel in the list."""
    return f"{job.config.short_form()} | {job.needs.identifier()} | {job.arch}"


def job_of(text: str) -> CompileJob:
    """The kernel of a line of the list, whatever its kernel and needs were called then."""
    config, needs, arch = text.split(" | ")
    return CompileJob(parse_config(config), Needs(tuple(n for n in NEEDS if n in needs)), arch)


def compare_shipped() -> int:
    """Compares shipped rows with what their kernels are now; 1: one is stale, or none was asked."""
    files = sorted(SHIPPED_FOLDER.glob("*.jsonl"))
    found = standings(m for path in files for m in read_lines(path, is_ours=True))
    for row, standing in found:
        if standing is Standing.STALE:
            print(f"{row.key.config} | {problem_text(row.key.problem)} | {row.key.arch}: stale")
    counts = Counter(standing for _, standing in found)
    told = ", ".join(f"{counts[one]} {one.value}" for one in Standing)
    print(f"{len(found)} shipped rows under {find_nvrtc().compiler}: {told}")
    return 1 if counts[Standing.STALE] or not counts[Standing.CURRENT] else 0


def _show(done: int, total: int) -> None:
    if done % 50 == 0 or done == total:
        print(f"{done} of {total}", file=sys.stderr)


def main() -> int:
    """`write FILE` adds this compiler's hashes to a list, `compare FILE` compares with it."""
    if sys.argv[1:] == ["shipped"]:
        return compare_shipped()
    verb, path = sys.argv[1], Path(sys.argv[2])
    compiler = find_nvrtc().compiler
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    listed = {job_of(row["kernel"]): row["code"] for row in map(json.loads, lines)}
    made = hashes()
    if verb == "write":
        for job, code in made.items():
            listed.setdefault(job, {})[compiler] = code
        rows = [json.dumps({"kernel": text_of(job), "code": c}) for job, c in listed.items()]
        path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        print(f"{len(made)} kernels of {compiler}")
        return 0
    known = {job: codes[compiler] for job, codes in listed.items() if compiler in codes}
    other = [job for job, code in known.items() if made.get(job) != code]
    for job in other:
        print(f"{text_of(job)}: {'other code' if job in made else 'not made any more'}")
    print(f"{len(known) - len(other)} of {len(known)} kernels of {compiler} have equal code")
    return 1 if other or not known else 0


if __name__ == "__main__":
    sys.exit(main())
