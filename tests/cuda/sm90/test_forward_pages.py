"""Chunks on wgmma whose keys lie in pages: the bits of a contiguous cache, inside the pool."""

import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from flashsmith.base.errors import EmulationError, Unsupported
from flashsmith.compile import compiler
from flashsmith.compile.header_closure import INCLUDE_ROOT, closure_hash
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels import parse_config
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.plans import plan
from flashsmith.kernels.sm90_forward import slices
from flashsmith.kernels.sm90_forward.plan import plan_forward
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays
from flashsmith.tuner.choose.choice import choose

pytest.importorskip("nvidia", reason="the compiler has no wheel here")

CONFIG = parse_config(
    "hopper(BF16, 64, 2, 64): kv_2+q_4+overlap+pingpong+early_rescale+early_tests+stats_SUM+lazy_8"
    "+tiles_DYNAMIC+split+sections+o_smem+regs_224_56"
)
# Two tiles of a head; no keys, fewer than a slice, two slices, as many as there is room for.
CHUNK = AttentionProblem(4, 3, 1, 150, 768, 64, causal=True, lse=True, k_lengths=True)
LENGTHS = np.array([0, 170, 590, 763], np.int32)
NAN = 0x7FC1


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Slices of three blocks are long enough."""
    monkeypatch.setattr(slices, "LEAST_KEYS", 64)
    monkeypatch.setattr(slices, "INVARIANT_KEYS", 3 * CONFIG.B_c)


def device(sm_count=7):
    return EmulatedDevice("sm_90a", sm_count=sm_count, options=EmulatorOptions(mma_in_order=True))


def contiguous(problem=CHUNK):
    inputs = random_inputs(replace(problem, k_lengths=False))
    return {**inputs, "k_lengths": LENGTHS[-problem.batch :].view(np.uint32)}


def paged(inputs, page, problem=CHUNK):
    """The same cache in pages that lie in any order; what no sequence has is not a number."""
    random, of_one = np.random.default_rng(page), -(-problem.k_len // page)
    pages = problem.batch * of_one + 3
    shuffled = random.permutation(pages - 1)[: problem.batch * of_one]
    order = shuffled.reshape(problem.batch, of_one)
    order[-1, 3] = pages - 1
    found = dict(inputs)
    for name in "kv":
        pool = np.full((pages, page, problem.kv_heads, problem.d_head), NAN, np.uint16)
        for sequence, length in enumerate(inputs["k_lengths"].view(np.int32)):
            for key in range(length):
                entry = order[sequence, key // page]
                pool[entry, key % page] = inputs[name][sequence, key]
        found[name] = pool
    table = order.astype(np.int32)
    table[-1, 3] = pages + 9  # it names no page: the last one is read
    for sequence, length in enumerate(inputs["k_lengths"].view(np.int32)):
        table[sequence, -(-length // page) :] = (-7, 2**31 - 1)[sequence % 2]  # never looked at
    found["block_table"] = table.view(np.uint32)
    return replace(problem, page=page, pages=pages), found


@cache
def bits_of_a_contiguous_cache():
    return run_arrays(device(), CONFIG, CHUNK, contiguous())


# Boxes, of a page or of a kv block, and rows; the last keys of a sequence are rows in all of them.
@pytest.mark.parametrize("page", [8, 16, 64, 192, 1, 4, 12, 200])
def test_pages_give_the_bits_of_a_contiguous_cache(page):
    problem, in_pages = paged(contiguous(), page)
    launch = plan_forward(CONFIG, problem, 7)[-1]
    assert launch.split.slices == 4
    found = run_arrays(device(3), CONFIG, problem, in_pages)
    for name, bits in bits_of_a_contiguous_cache().items():
        np.testing.assert_array_equal(bits, found[name])
    assert not found["o"][0].any()


@pytest.mark.gpu
@pytest.mark.parametrize("page", [16, 64, 192, 1, 200])
def test_a_gpu_gives_pages_the_bits_of_a_contiguous_cache(page):
    gpu = default_device("cuda")
    problem, in_pages = paged(contiguous(), page)
    found = run_arrays(gpu, CONFIG, problem, in_pages)
    for name, bits in run_arrays(gpu, CONFIG, CHUNK, contiguous()).items():
        np.testing.assert_array_equal(bits, found[name])


@pytest.mark.parametrize(("gib", "is_read"), [(63, True), (65, False)])
def test_a_pool_whose_rows_lie_too_far_apart_is_refused(gib, is_read):
    """Its rows are told as 32-bit numbers of chunks."""
    problem = replace(CHUNK, page=16, pages=1025)
    near = TensorArg(1 << 20, 1 << 16, 64, 1 << 10)
    far = replace(near, batch_stride=gib << 19)  # of 1,024 pages, elements of 2 bytes
    launch = plan_forward(CONFIG, problem, 7)[-1]
    said = launch.obstacle({"q": near, "o": near, "k": near, "v": far})
    assert (said == "") is is_read
    assert said.startswith("v spans " if said else "")


def test_launches_of_a_batch_read_one_pool(monkeypatch):
    problem, in_pages = paged(contiguous(), 16)
    first = run_arrays(device(), CONFIG, problem, in_pages)
    monkeypatch.setattr(slices, "COUNTER_BYTES", 4 * (2 + 2 * 2 * 18))
    assert len(plan_forward(CONFIG, problem, 7)) == 4
    found = run_arrays(device(), CONFIG, problem, in_pages)
    for name, bits in first.items():
        np.testing.assert_array_equal(bits, found[name])


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"page": 16, "pages": 9, "k_lengths": False}, "of sequences that have k_lengths"),
    ],
)
def test_other_pages_are_refused(facts, says):
    with pytest.raises(Unsupported, match=says):
        plan(CONFIG, replace(CHUNK, **facts), sm_count=7)


@pytest.mark.parametrize(
    ("q_len", "page", "arch", "starts"),
    [
        (17, 16, "sm_90a", "hopper("),  # of 4 heads: more than 64 rows
        (16, 16, "sm_90a", "hopper_decode("),
        (1, 16, "sm_90a", "decode("),
        (128, 1, "sm_90a", "hopper("),
        (128, 128, "sm_90a", "hopper("),
        (128, 16, "sm_80", "decode("),
    ],
)
def test_rows_and_pages_of_a_request_say_which_kernel_reads_them(q_len, page, arch, starts):
    for batch in (1, 40):
        problem = AttentionProblem(
            *(batch, 32, 8, q_len, 8192, 128), k_lengths=True, causal=True, page=page, pages=700
        )
        assert choose(problem, arch).config.short_form().startswith(starts)


# By the rows of a page: boxes, or rows.
MUTANTS = {
    "page off by one": ("entries + number)", "entries + min(number + 1, args_.table_pages - 1))"),
    "page of another sequence": ("static_cast<i64>(batch) * args_.table_pages", "0"),
    "entries not clamped": (
        "min(max(ptx::ld_global_i32(entries + number), 0), args_.pages - 1)",
        "ptx::ld_global_i32(entries + number)",
    ),
    "stages that are not free": (
        "ptx::mbarrier_wait(kIsV ? smem_.v_empty(stage) : smem_.k_empty(stage), parity ^ 1);",
        "",
    ),
    "behind the last key": ("block.left >= kConfig.B_c", "block.left > 0"),
}
BOX_MUTANTS = {
    "row of a page off by one": (
        "block.first + row - number * args_.page, block.head",
        "block.first + row + 1 - number * args_.page, block.head",
    ),
    "rows on top of others": (
        "(panel * kConfig.B_c + row) * kPanelRowBytes",
        "panel * kConfig.B_c * kPanelRowBytes",
    ),
    "another head": ("block.head, page}", "0, page}"),
}
ROW_MUTANTS = {
    "row of a page off by one": ("key - number * args_.page)", "key + 1 - number * args_.page)"),
    "a row of another lane": ("shfl_idx(rows[i], of_lane", "shfl_idx(rows[i], 1 + of_lane"),
    "another head": ("block.head * tensor_.head_stride", "0"),
    "rows behind the last key": ("row < block.left);", "true);"),
    "nothing waits for the copies": ("ptx::cp_async_wait<0>();", ""),
    "no fence before wgmma": ("ptx::fence_proxy_async();", ""),
}
ORDER_MUTANTS = {
    "orders are given back unread": (
        "const u32 order = ptx::ld_shared_b32(place(is_v, stage));\n"
        "        ptx::bar_warp_sync();  // all lanes have read it\n"
        "        ptx::mbarrier_arrive_if(lane == 0, full(is_v, stage) + (kEmpty - kFull));",
        "ptx::mbarrier_arrive_if(lane == 0, full(is_v, stage) + (kEmpty - kFull));\n"
        "        ptx::bar_warp_sync();\n"
        "        const u32 order = ptx::ld_shared_b32(place(is_v, stage));",
    ),
    "orders are written over": (
        "ptx::mbarrier_wait(full(is_v, stage) + (kEmpty - kFull), parity);",
        "",
    ),
    "stages of K and V are one": ("(is_v * kConfig.kv_stages + stage) * 8", "stage * 8"),
}
PLANTED = [
    *((None, header, "", "", page) for header, page in (("page_copies", 16), ("page_copies", 12))),
    *((name, "page_copies", *m, page) for name, m in MUTANTS.items() for page in (16, 12)),
    *((name, "page_copies", *m, 16) for name, m in BOX_MUTANTS.items()),
    *((name, "page_copies", *m, 12) for name, m in ROW_MUTANTS.items()),
    *((name, "page_orders", *m, 16) for name, m in ORDER_MUTANTS.items()),
]


@pytest.mark.parametrize(
    ("mutant", "header", "right", "wrong", "page"),
    [p for p in PLANTED if p[0] != "behind the last key" or p[-1] == 16],
)
def test_every_mutant_is_noticed(mutant, header, right, wrong, page, monkeypatch, tmp_path):
    heads = 2 if mutant == "another head" else 1
    small = replace(CHUNK, batch=2, heads=heads, kv_heads=heads)
    inputs = contiguous(small)
    problem, in_pages = paged(inputs, page, small)
    first = run_arrays(device(), CONFIG, small, inputs)
    if mutant is not None:
        root = tmp_path / "include"
        shutil.copytree(INCLUDE_ROOT, root)
        path = root / "flashsmith" / "sm90" / f"{header}.cuh"
        text = path.read_text(encoding="utf-8")
        assert text.count(right) == 1, right
        path.write_text(text.replace(right, wrong), encoding="utf-8")
        monkeypatch.setattr(compiler, "INCLUDE_ROOT", root)
        monkeypatch.setattr(compiler, "closure_hash", lambda unit: closure_hash(unit, root))
    try:
        found = run_arrays(device(), CONFIG, problem, in_pages)
    except EmulationError:
        assert mutant is not None
        return
    same = all(np.array_equal(bits, found[name]) for name, bits in first.items())
    assert same == (mutant is None)
