"""Races kernels of another version of the sources against this one's, side by side on a GPU.

    python tools/race_versions.py OTHER_SRC [--shipped | --problem LEN,D,MASK]
        [--cache BATCH,KEYS,ROWS,HEADS,KV_HEADS,D] [CONFIG...] -o FILE

For a change that leaves the arguments of kernels as they are, or adds some at the end. OTHER_SRC is
the folder `src` of the other version, whose kernels are compiled by its own package in a child
process. The other version is the baseline; a ratio above 1 says that this version is faster.
Records name the hash of both, and say whether both wrote the same bits. MASK is `full` or `causal`;
`LEN,D,MASK,ragged` makes lengths that are no multiples of a tile, narrower rows and an LSE.
`--cache` is a problem of few rows on a cache.
`--emulator` compares bits there, on small problems, and races nothing.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from flashsmith.base import settings
from flashsmith.base.dtypes import DType
from flashsmith.compile.compiler import CompileJob, compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels import parse_config
from flashsmith.kernels.plans import needs_of
from flashsmith.measure.environment import environment_of, timed_device
from flashsmith.measure.interleaved import Contender, compare
from flashsmith.measure.record import append_records, records_of
from flashsmith.measure.statistics import geometric_mean
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.problem.signature import signature_of
from flashsmith.problem.text import problem_text
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import prepare
from flashsmith.runtime.tensors import contiguous_tensors, uploaded
from flashsmith.tuner.choose.measured import shipped_table
from flashsmith.tuner.store.outcome import Timed

# Runs in the other version's package; older ones call the needs of a kernel its traits.
CHILD = """
import base64, json, sys
from flashsmith.compile.compiler import CompileJob, compile_many
try:
    from flashsmith.problem.needs import Needs
    from flashsmith.kernels import parse_config
    make = lambda names: Needs(tuple(names))
except ImportError:
    from flashsmith.config.traits import ForwardTraits
    from flashsmith.config.parse import parse_config
    make = lambda names: ForwardTraits(**dict.fromkeys(names, True))
wanted = json.load(sys.stdin)
jobs = [CompileJob(parse_config(c), make(n), a) for c, n, a in wanted]
for kernel in compile_many(jobs):
    if isinstance(kernel, Exception):
        raise kernel
    cubin = base64.b64encode(kernel.cubin).decode()
    print(json.dumps({"name": kernel.name, "cubin": cubin, "ptx": kernel.ptx}))
"""


def other_kernels(src: Path, wanted: list[tuple[str, tuple[str, ...], str]]) -> list[dict]:
    """Names and cubins as the other version makes them."""
    with tempfile.TemporaryDirectory() as cache:
        changes = {"PYTHONPATH": str(src), "FLASHSMITH_CACHE_DIR": cache}
        ran = subprocess.run(
            [sys.executable, "-c", CHILD],
            input=json.dumps(wanted),
            env=settings.child_environment(changes),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [json.loads(line) for line in ran.stdout.splitlines()]


def pairs_of(arguments) -> list:
    """What is raced: configurations on problems."""
    if arguments.shipped:
        rows = [m for m in shipped_table(arguments.gpu).read() if isinstance(m.outcome, Timed)]
        return [(parse_config(m.key.config), m.key.problem) for m in rows]
    problems = []
    for text in arguments.problem:
        length, d_head, mask, *ragged = text.split(",")
        n, d = int(length), int(d_head)
        batch, heads = (2, 3) if arguments.emulator else (max(16384 // n, 1), 2048 // d)
        problem = AttentionProblem(*(batch, heads, heads, n, n, d, DType.BF16), causal="c" in mask)
        if ragged:
            problem = replace(problem, q_len=n - 37, k_len=n - 5, d_head=d - 8, lse=True)
        problems.append(problem)
    for text in arguments.cache:
        batch, k_len, q_len, heads, kv_heads, d_head = map(int, text.split(","))
        problems.append(AttentionProblem(batch, heads, kv_heads, q_len, k_len, d_head))
    return [(parse_config(text), problem) for text in arguments.configs for problem in problems]


def are_same_bits(device, pair, kernels) -> bool:
    """Whether all versions of a kernel write the same bits of every output."""
    config, problem = pair
    outputs = [role.name for role in signature_of(problem).outputs(problem)]
    locations, buffers = contiguous_tensors(problem, random_inputs(problem))
    found = []
    for kernel in kernels.values():
        with uploaded(device, buffers) as held:
            prepared = prepare(device, config, problem, compile_with=lambda *_, k=kernel: k)
            _with_its_arguments(prepared, kernel)(held.call(locations))
            found.append([held.download(name).tobytes() for name in outputs])
    return all(bits == found[0] for bits in found)


def _with_its_arguments(prepared, kernel):
    """The same with arguments as long as the kernel's own: newer versions add theirs at the end."""
    n_bytes = int(re.search(r"\.param \.align \d+ \.b8 \w+\[(\d+)\]", kernel.ptx)[1])
    steps = [
        replace(step, bind=lambda params, b=step.bind: b((params[0][:n_bytes],)))
        for step in prepared.steps
    ]
    return replace(prepared, steps=tuple(steps))


def versions_of(mine, other) -> dict:
    """A kernel as both versions make it."""
    if isinstance(mine, Exception):
        raise mine
    cubin = base64.b64decode(other["cubin"])
    theirs = replace(mine, key=f"other {mine.key}", name=other["name"], cubin=cubin)
    return {"other version": replace(theirs, ptx=other["ptx"]), "this version": mine}


def raced(device, arguments, pair, kernels):
    """One interleaved run of both versions, and records that name the code of each."""
    config, problem = pair
    is_same = are_same_bits(device, pair, kernels)
    locations, buffers = contiguous_tensors(problem, random_inputs(problem))
    with uploaded(device, buffers) as held:
        call = held.call(locations)
        contenders = []
        for name, kernel in kernels.items():
            prepared = prepare(device, config, problem, compile_with=lambda *_, k=kernel: k)
            contenders.append(Contender(name, lambda s, p=prepared, c=call: p(c, s)))
        run = compare(device, contenders, rounds=arguments.rounds)
    environment = environment_of(device, compiler=find_nvrtc().compiler)
    made = records_of(run, problem, environment, suite="versions", flops=cost_of(problem).flops)
    about = {
        name: {"config": config.short_form(), "code": kernel.code, "same_bits": is_same}
        for name, kernel in kernels.items()
    }
    return run, [replace(r, what={**r.what, **about[str(r.what["name"])]}) for r in made]


def main() -> None:
    """Races, prints a table and the geometric mean, and appends records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("configs", nargs="*")
    parser.add_argument("--shipped", action="store_true")
    parser.add_argument("--problem", action="append", default=[])
    parser.add_argument("--cache", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--emulator", action="store_true")
    parser.add_argument("-o", dest="output", type=Path)
    arguments = parser.parse_args()
    device = default_device("emulator" if arguments.emulator else "cuda")
    arguments.gpu = device.name
    pairs = pairs_of(arguments)
    jobs = [CompileJob(c, needs_of(c, p), device.arch) for c, p in pairs]
    wanted = [(j.config.short_form(), j.needs.names, j.arch) for j in jobs]
    others = other_kernels(arguments.other, wanted)
    ratios = []
    for pair, mine, other in zip(pairs, compile_many(jobs), others, strict=True):
        kernels = versions_of(mine, other)
        if arguments.emulator:
            said = "same bits" if are_same_bits(device, pair, kernels) else "OTHER BITS"
            print(f"{said}: {problem_text(pair[1])} {pair[0].short_form()}", flush=True)
            continue
        run, records = raced(timed_device(device), arguments, pair, kernels)
        append_records(arguments.output, records)
        ratios.append(run.timed[0].time_us.median / run.timed[1].time_us.median)
        print(
            f"{ratios[-1]:.4f} control {run.control.median:.4f} "
            f"{'VOID ' if run.is_void else ''}"
            f"{'same' if records[0].what['same_bits'] else 'OTHER'} bits "
            f"{problem_text(pair[1])} {pair[0].short_form()}",
            flush=True,
        )
    if ratios:
        mean = geometric_mean(ratios)
        print(f"geometric mean {mean:.4f}, least {min(ratios):.4f}, {len(ratios)}")


if __name__ == "__main__":
    main()
