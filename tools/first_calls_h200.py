"""Times the first call of each feature in a fresh process with an empty kernel cache, on a GPU.

    PYTHONPATH=src python tools/first_calls_h200.py -o FILE [--only packed,window]

From `import flashsmith` to the output, torch and its context not counted; kernels that come in a
wheel are there only where one was built. A line each is appended to FILE; the table comes last,
and the exit status is 1 where a first call took longer than 2.5 s or failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

BAR = 2.5  # seconds
SETTING = """
import sys, time
import torch

def x(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

def ints(*numbers):
    return torch.tensor(numbers, device="cuda", dtype=torch.int32)

q, k, v = x(2, 1024, 8, 128), x(2, 1024, 2, 128), x(2, 1024, 2, 128)
one, pages = x(2, 1, 8, 128), [x(256, 16, 2, 128) for _ in "kv"]
table = torch.randperm(256, device="cuda").int().view(2, 128)
narrow, wide = x(2, 1024, 8, 64), x(1, 1024, 4, 512)
bias = x(1, 1, 1024, 1024)
hidden = torch.rand(2, 1, 1024, 1024, device="cuda") < 0.5
lengths, ends = ints(700, 1000), ints(0, 300, 2048)
heads = torch.randn(8, device="cuda")
flat = [t.reshape(2048, -1, 128) for t in (q, k, v)]
q192, k192, v128 = x(1, 1024, 8, 192), x(1, 1024, 8, 192), x(1, 1024, 8, 128)
torch.cuda.synchronize()
begin = time.perf_counter()
import flashsmith
from flashsmith import flash_attention as call
"""
CALLS = {
    "plain, another length": "call(q[:, :1000], k, v)",
    "causal": "call(q, k, v, causal=True)",
    "window": "call(q, k, v, causal=True, window=(256, 0))",
    "softcap": "call(q, k, v, softcap=50.0)",
    "sinks": "call(q, k, v, causal=True, sinks=heads)",
    "sinks and window, d 64": "call(narrow, narrow, narrow, window=(128, 0), sinks=heads)",
    "ALiBi": "call(q, k, v, causal=True, alibi_slopes=heads.abs())",
    "additive bias": "call(q, k, v, bias=bias)",
    "boolean mask": "call(q, k, v, bias=hidden)",
    "packed": "flashsmith.flash_attn_varlen_func(*flat, ends, ends, 1748, 1748, causal=True)",
    "padded lengths": "call(q, k, v, q_lengths=lengths, k_lengths=lengths)",
    "d_v below d_qk": "call(q192, k192, v128, causal=True)",
    "d_head 512": "call(wide, wide, wide, causal=True)",
    "decode on a cache": "call(one, k, v, k_lengths=lengths)",
    "decode on pages": "call(one, *pages, k_lengths=lengths, block_table=table)",
    "a chunk on pages": "call(q[:, :128], *pages, k_lengths=lengths, block_table=table)",
}


def seconds_of(text: str) -> tuple[float | None, str]:
    """What a child measured, or the last line of what it said."""
    program = f"{SETTING}{text}\ntorch.cuda.synchronize()\nprint(time.perf_counter() - begin)\n"
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"FLASHSMITH_CACHE_DIR": empty},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["it ended"])[-1]
    return float(done.stdout.split()[-1]), ""


def main() -> int:
    """A process a call, one after the other, as a user's is; the table is last."""
    from flashsmith.compile.nvrtc.library import find_nvrtc
    from flashsmith.measure.environment import environment_of
    from flashsmith.measure.record import Record, append_records
    from flashsmith.runtime.devices import default_device
    from flashsmith.tuner.choose.shipped_kernels import bundle_path, current_kernels

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--only", help="some of the features, by name; without it all")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else CALLS
    # Not counted: no wheel has it, so that the compiler is read from disk once before.
    seconds_of(CALLS["softcap"])
    found = {name: seconds_of(CALLS[name]) for name in names}
    bundle = bundle_path("sm_90a")
    bundled = current_kernels(bundle) if bundle.exists() else 0
    environment = asdict(environment_of(default_device(), compiler=find_nvrtc().compiler))
    for name, (seconds, why) in found.items():
        if seconds is None:
            print(f"{name:24} FAILED {why[:90]}")
            continue
        what = {"suite": "first_call", "name": name, "call": CALLS[name], "bundled": bundled}
        append_records(arguments.output, [Record(what, {"seconds": seconds}, environment)])
        print(f"{name:24} {seconds:5.2f} s{'' if seconds <= BAR else ' MISSED'}")
    return int(any(seconds is None or seconds > BAR for seconds, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main())
