"""Says when ctas of a decode kernel start, have their keys and end, by clocks in the kernel.

    PYTHONPATH=src python tools/decode_stamps.py [--config TEXT] [--shape 1,8192,1] [--way lengths]

Kernels are compiled from headers into which stamps were written: thread 0 of every cta reads the
GPU's clock (some tens of nanoseconds fine) at each of PLACES. The table has nanoseconds from the
first stamp of the launch, L2 cold: the first cta, the median and the last one, medians of RUNS.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
from pathlib import Path

import torch
from serve_h200 import Cache, problem_of

from flashsmith.compile import compiler
from flashsmith.compile.header_closure import INCLUDE_ROOT, closure_hash
from flashsmith.kernels import parse_config
from flashsmith.kernels.arguments import TensorArg
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import prepare

RUNS = 9
STAMPS = 16  # words of a cta
FLUSH_BYTES = 256 << 20
CONFIGS = (
    "decode(BF16, 128, 16, 16, 4): slice_512+most_32+stages_3+ctas_2",
    "decode(BF16, 128, 16, 16, 4): slice_512+most_32+stages_3+ctas_2+quick_start+quick_end",
    "decode(BF16, 128, 16, 16, 4): slice_512+most_32+stages_6+ctas_1+quick_start+quick_end",
)
# How the cache is given: in pages, with lengths in memory.
WAYS = {"plain": (False, False), "lengths": (False, True), "pages": (True, True)}
# What is stamped behind a line of a header of decode/.
PLACES = {
    "starts": ("compute", "static_assert(Kernel::valid());"),
    "first copies are out": ("compute", "team.begin(0);"),
    "all copies are out": ("compute", "team.look_at_rows(work);"),
    "Q is there": ("compute", "ptx::bar_sync();  // all of Q is in shared memory"),
    "keys are multiplied": ("compute", "team.walk();"),
    "teams have handed over": ("compute", "ptx::bar_sync();  // all teams have handed over"),
    "teams are added up": ("compute", "output.add_teams();"),
    "it is known who is last": (
        "output",
        "ptx::bar_sync();  // and thread 0 has seen who came before",
    ),
    "ends": ("compute", "output.add_slices();"),
}
END = "}  // namespace flashsmith::decode"
CLOCK = (
    """
template <class Args>
FS_DEVICE void stamp(const Args& args, int place) {
    if (threadIdx.x != 0) return;
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) : : "memory");
    const u32 cta = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    reinterpret_cast<u64*>(args.lse)[cta * 16 + place] = now;
}

"""
    + END
)


def stamped_headers(root: Path) -> Path:
    """A copy of the headers whose decode kernels write stamps where the log-sum-exp would go."""
    shutil.copytree(INCLUDE_ROOT, root)
    folder = root / "flashsmith" / "decode"
    replace_in(folder / "kernel.cuh", END, CLOCK)
    for place, (header, line) in enumerate(PLACES.values()):
        args = "args_" if header == "output" else "args"
        replace_in(folder / f"{header}.cuh", line, f"{line}\n    stamp({args}, {place});")
    return root


def replace_in(path: Path, old: str, new: str) -> None:
    """Replaces a line wherever it stands."""
    text = path.read_text(encoding="utf-8")
    assert old in text, old
    path.write_text(text.replace(old, new), encoding="utf-8")


def stamps_of(device, config, cache: Cache, way: str) -> torch.Tensor:
    """Nanoseconds of every cta at every place, from the first on; median over runs of each."""
    paged, lengths = WAYS[way]
    problem, call, _ = cache.call(paged=paged, lengths=lengths)
    prepared = prepare(device, config, problem)
    room = torch.zeros(1 << 16, STAMPS, dtype=torch.int64, device="cuda")
    call["lse"] = TensorArg(room.data_ptr())
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    found = []
    for run in range(RUNS + 2):
        room.zero_()
        flush.fill_(run)
        torch.cuda.synchronize()
        prepared(call)
        torch.cuda.synchronize()
        times = room[room[:, 0] > 0][:, : len(PLACES)]
        found.append(times - times[:, 0].min())
    return torch.stack(found[2:]).double()


def main() -> None:
    """A table for every configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--shape", default="1,8192,1")
    parser.add_argument("--way", action="append", default=[], choices=WAYS)
    arguments = parser.parse_args()
    device = default_device("cuda")
    cache = Cache(problem_of(*map(int, arguments.shape.split(","))))
    with tempfile.TemporaryDirectory() as folder:
        root = stamped_headers(Path(folder) / "include")
        compiler.INCLUDE_ROOT = root
        compiler.closure_hash = lambda unit: closure_hash(unit, root)
        ways = arguments.way or ["plain"]
        for text, way in itertools.product(arguments.config or CONFIGS, ways):
            times = stamps_of(device, parse_config(text), cache, way)
            title = f"{text} on {arguments.shape}, {way}"
            print(f"\n{title}: {times.shape[1]} ctas; ns: first, median, last")
            for place, name in enumerate(PLACES):
                at = times[:, :, place]
                ranks = (at.min(1).values, at.median(1).values, at.max(1).values)
                print(f"{name:22} " + " ".join(f"{r.median().item():8.0f}" for r in ranks))


if __name__ == "__main__":
    main()
