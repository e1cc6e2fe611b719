"""Calls whose host time is measured, in the version of flashsmith that this process imports.

    python tools/host_calls.py warm [CASE …]
                                       reads `CASE CALLS` lines, prints microseconds a call
    python tools/host_calls.py first   reads `SRC|CACHE|CASE` lines, prints seconds of the import
                                       and of two calls, in a process that has torch and no more

A child of race_host.py: old versions run it too, so it uses public names alone. With the path of a
stand-in driver in STAND_IN, tensors of the CPU are said to lie on a GPU, and nothing is computed.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
import traceback
from functools import partial
from itertools import pairwise
from pathlib import Path

MMA = "(BF16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
STAND_IN = os.environ.get("STAND_IN", "")
WHERE = "cpu" if STAND_IN else "cuda"


def use_stand_in() -> None:
    """Gives the package a driver that does nothing; before an operator is called."""
    import flashsmith  # noqa: F401

    try:
        from flashsmith.runtime.cuda import driver
    except ImportError:
        from flashsmith.runtime import driver
    from flashsmith.runtime.devices import default_device

    driver._found = [driver.Driver(ctypes.CDLL(STAND_IN))]
    from flashsmith.torch_op import cpu_kernel, cuda_kernel

    for name in (
        "forward",
        "forward_lse",
        "forward_out",
        "forward_with",
        "forward_into",
        "forward_cache",
    ):
        if hasattr(cuda_kernel, name):
            setattr(cpu_kernel, name, getattr(cuda_kernel, name))
    cuda_kernel.gpu_device = lambda view, backend: default_device("cuda")
    name = "current_stream" if hasattr(cuda_kernel, "current_stream") else "_current_stream"
    setattr(cuda_kernel, name, lambda ordinal: 0)
    keep_memory(cuda_kernel.torch)


def keep_memory(torch) -> None:
    """Lets memory come back where it was, as from torch's allocator on a GPU."""
    make_like, make, kept = torch.empty_like, torch.empty, {}

    def empty_like(like, **options):
        key = like.shape, like.dtype
        if key not in kept:
            kept[key] = make_like(like, **options)
        return kept[key]

    def empty(*shape, **options):
        if options.get("dtype") is not torch.uint8:
            return make(*shape, **options)
        if shape not in kept:
            kept[shape] = make(*shape, **options)
        return kept[shape]

    torch.empty_like, torch.empty = empty_like, empty


def plain_calls() -> dict:
    """Calls that every version knows, each small enough that the GPU is never behind."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    import flashsmith
    import flashsmith.torch_op.operator

    made = (torch.randn(1, 64, 8, 128, dtype=torch.bfloat16, device=WHERE) for _ in range(3))
    q, k, v = made
    bhsd = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    attend = partial(flashsmith.flash_attention, q, k, v, causal=True)
    operator = torch.ops.flashsmith.forward.default
    is_first = operator._schema.arguments[3].name == "causal"  # the oldest has the scale there
    return {
        "torch sdpa": partial(sdpa, *bhsd, is_causal=True),
        "flash_attention": attend,
        "flash_attention lse": partial(attend, return_lse=True),
        "flash_attention mma": partial(attend, config=MMA),
        "flash_attn_func": partial(flashsmith.flash_attn_func, q, k, v, causal=True),
        "sdpa drop-in": partial(flashsmith.scaled_dot_product_attention, *bhsd, is_causal=True),
        "operator": partial(operator, q, k, v, *((True,) if is_first else (None, True))),
    }


def table_calls() -> dict:
    """Calls with tables; the first versions have none of them."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    import flashsmith

    def zeros(*shape, dtype=torch.bfloat16):
        return torch.zeros(*shape, dtype=dtype, device=WHERE)

    q, cache = zeros(4, 1, 8, 128), zeros(4, 256, 2, 128)
    rows, pages = zeros(4, 8, 8, 128), zeros(64, 16, 2, 128)
    lengths = torch.tensor([5, 256, 100, 33], dtype=torch.int32, device=WHERE)
    table = torch.arange(64, dtype=torch.int32, device=WHERE).reshape(4, 16)
    bounds = torch.tensor([0, 10, 64], dtype=torch.int32, device=WHERE)
    mask = torch.ones(4, 1, 1, 256, dtype=torch.bool, device=WHERE)
    packed = zeros(64, 8, 128)
    bhsd = [t.transpose(1, 2).contiguous() for t in (rows, cache, cache)]
    few = [q.transpose(1, 2).contiguous(), *bhsd[1:]]
    lengthy = partial(flashsmith.flash_attention, rows, cache, cache)
    kv_cache = getattr(flashsmith, "flash_attn_with_kvcache", None)
    of_pages = partial(flashsmith.flash_attention, q, pages, pages, block_table=table)
    varlen = partial(flashsmith.flash_attn_varlen_func, packed, packed, packed, bounds, bounds)
    calls = {
        "torch sdpa decode": partial(sdpa, *few, enable_gqa=True),
        "lengths": partial(lengthy, k_lengths=lengths),
        "pages": partial(of_pages, k_lengths=lengths),
        "mask": partial(flashsmith.scaled_dot_product_attention, *bhsd, mask, enable_gqa=True),
        "packed": partial(varlen, 64, 64, causal=True),
        "kv cache": partial(kv_cache, q, cache, cache, cache_seqlens=lengths, causal=True),
        "kv cache pages": partial(
            kv_cache, q, pages, pages, cache_seqlens=lengths, block_table=table, causal=True
        ),
    }
    return calls | table_operators(q, cache, pages, {"k_lengths": lengths}, table)


def table_operators(q, cache, pages, lengths, table) -> dict:
    """The operator beneath the calls on a cache."""
    from flashsmith.api.tables import listed
    from flashsmith.torch_op import operator

    if hasattr(operator, "forward_cache"):
        one = partial(operator.forward_cache, q, cache, cache, lengths["k_lengths"], None, True)
        other = partial(operator.forward_cache, q, pages, pages, lengths["k_lengths"], table, True)
    else:
        brought, with_pages = listed(lengths), listed({**lengths, "block_table": table})
        one = partial(operator.forward_with, q, cache, cache, brought, False, True)
        other = partial(operator.forward_with, q, pages, pages, with_pages, False, True)
    return {"kv cache operator": one, "kv cache pages operator": other}


def calls_of_this_version() -> dict:
    """Every case that runs, by name."""
    import flashsmith

    calls = plain_calls()
    if hasattr(flashsmith, "flash_attn_with_kvcache"):
        calls |= table_calls()
    if STAND_IN:  # torch's own would compute
        calls = {name: call for name, call in calls.items() if not name.startswith("torch")}
    return calls


def answer_warm(only: list[str]) -> None:
    """Times the calls that are asked for; the calls that there are, or those of `only`, come first.

    Kernels of the others are not compiled.
    """
    import torch

    clock = time.thread_time if STAND_IN else time.perf_counter  # of a machine that may be busy
    torch.manual_seed(0)
    known = calls_of_this_version()
    calls = {name: call for name, call in known.items() if name in (only or known)}
    for call in calls.values():
        with torch.inference_mode():
            for _ in range(50):
                call()
    print("|".join(calls), flush=True)
    for line in sys.stdin:
        name, _, count = line.strip().rpartition(" ")
        call = calls[name]
        with torch.inference_mode():
            for _ in range(20):
                call()
            wait(torch)
            started = clock()
            for _ in range(int(count)):
                call()
            spent = clock() - started
            wait(torch)
        print(spent / int(count) * 1e6, flush=True)


def wait(torch) -> None:
    """Until the GPU has done what it was given."""
    if WHERE == "cuda":
        torch.cuda.synchronize()


FIRST = {
    "torch tensors": {},
    "mma.sync": {"config": MMA},
}


def answer_first() -> None:
    """Has a child of its own for every line: torch is imported once, and nothing of flashsmith."""
    import numpy  # noqa: F401
    import torch  # noqa: F401  # it starts no CUDA: a child may

    print("ready", flush=True)
    for line in sys.stdin:
        src, cache, case = line.strip().split("|")
        child = os.fork()
        if child == 0:
            sys.path.insert(0, src)
            os.environ["FLASHSMITH_CACHE_DIR"] = cache
            status = 1
            try:
                time_first(src, case)
                status = 0
            finally:  # the lines that follow are its parent's
                if status:
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(status)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"the first call of {src} failed")


def time_first(src: str, case: str) -> None:
    """Seconds of the import, the first call and the second, in this process."""
    import torch

    clock = time.process_time if STAND_IN else time.perf_counter  # of a machine that may be busy
    q = torch.ones(2, 1000, 8, 128, dtype=torch.bfloat16, device=WHERE)
    wait(torch)
    times = [clock()]
    if STAND_IN:
        use_stand_in()
    from flashsmith import flash_attention

    times.append(clock())
    for _ in range(2):
        flash_attention(q, q, q, causal=True, **FIRST[case])
        wait(torch)
        times.append(clock())
    if not Path(sys.modules["flashsmith"].__file__).is_relative_to(src):
        raise ImportError(f"flashsmith was found elsewhere than in {src}")
    print("|".join(str(end - start) for start, end in pairwise(times)))


if __name__ == "__main__":
    if sys.argv[1] == "warm":
        if STAND_IN:
            use_stand_in()
        answer_warm(sys.argv[2:])
    else:
        answer_first()
