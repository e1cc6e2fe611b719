"""Products of shared memory that nothing has written: fine when dropped, a fault when used."""

import numpy as np
import pytest
from lanes import launch, text

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.copies.smem_layout import MatrixDescriptor
from flashsmith.emulator.options import EmulatorOptions

# Without swizzle: core matrices of 8 rows x 16 bytes, the second half of K behind the first.
#   A  64 rows x 16 of K, 2,048 bytes at 0 of `tile`    B  8 rows x 16 of K, 256 bytes behind A
A_BYTES, TILE = 2048, 1024  # dynamic shared memory begins at address 1024
A, B = (
    MatrixDescriptor(start, leading_bytes=128, stride_bytes=256, base_offset=0, swizzle_bytes=0)
    for start in (TILE, TILE + A_BYTES)
)
SHARED = "\t.extern .shared .align 1024 .b8 tile[];"
D = "{%f0, %f1, %f2, %f3}"
ONES = 0x3C003C00  # two f16

# %r1 thread, %r2 the tile, %r4 its 16 bytes of A, %r5 its 16 bytes of B; %rd3 its words of out
START = f"""mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mad.lo.u32 %r4, %r1, 16, %r2;
    add.u32 %r5, %r4, {A_BYTES}; mov.u32 %r6, {ONES}; setp.ne.u32 %p0, %r1, %r1;
    mov.f32 %f0, 0f00000000; mov.f32 %f1, 0f00000000; mov.f32 %f2, 0f00000000;
    mov.f32 %f3, 0f00000000; mov.b64 %rd0, {A.encode()}; mov.b64 %rd1, {B.encode()};
    ld.param.u64 %rd2, [p0]; mul.wide.u32 %rd3, %r1, 16; add.s64 %rd3, %rd2, %rd3;
    setp.lt.u32 %p1, %r1, 16; setp.ge.u32 %p2, %r1, 32; setp.eq.u32 %p3, %r1, %r1;
    mov.f32 %f10, 0f40400000;"""
FILL_A = "st.shared.v4.u32 [%r4], {%r6, %r6, %r6, %r6};"
FILL_B = "@%p1 st.shared.v4.u32 [%r5], {%r6, %r6, %r6, %r6};"
PUBLISH = "fence.proxy.async.shared::cta; bar.sync 0;"
FENCE = "wgmma.fence.sync.aligned;"
END = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
STORE = f"st.global.v4.f32 [%rd3], {D};"
SCHEDULES = [None, 0, 1]
USES = "uses a product of shared memory that nothing has written"


def product(a="%rd0", *, add="%p0"):
    """A step of sixteen; it replaces the accumulators unless `add` is %p3."""
    turned = "0, 0" if a == "%rd0" else "0"
    return (
        f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {D}, {a}, %rd1, {add}, 1, 1, {turned};"
    )


def multiply(*steps):
    return FENCE + "".join(steps or (product(),)) + END


def run(*body, seed=None, checks=True):
    """The accumulators that 128 threads stored."""
    ptx = text(START + "".join(body) + "end:", 1, shared=SHARED)
    options = EmulatorOptions(seed=seed, checks=checks)
    out, _ = launch(ptx, [], 128 * 16, 1, 128, options, smem_bytes=A_BYTES + 256)
    return out.view(np.float32).reshape(128, 4)


def fault(*body, **options):
    with pytest.raises(EmulationError) as caught:
        run(*body, **options)
    assert caught.value.kind == "uninitialised"
    return caught.value


@pytest.mark.parametrize("seed", SCHEDULES)
def test_a_product_that_is_dropped_is_no_fault(seed):
    """The same registers hold a product of what was written in between."""
    first = multiply() + "bar.sync 0;"  # all warps have read what is filled now
    out = run(first, FILL_A, FILL_B, PUBLISH, multiply(), STORE, seed=seed)
    assert (out == 16).all()


@pytest.mark.parametrize("filled", ["", FILL_A, FILL_B], ids=["none", "A", "B"])
def test_a_product_that_is_stored_is_a_fault_at_the_store(filled):
    found = fault(filled, PUBLISH, multiply(), STORE)
    assert USES in found.message
    assert "st.global" in str(found)


def test_without_checks_it_is_what_it_is():
    run(multiply(), STORE, checks=False)


# What lets a value out of its thread, or decides where the thread goes.
LEAKS = {
    "st.global": "st.global.f32 [%rd3], %f0;",
    "part of a vector": "st.global.v4.f32 [%rd3], {%f10, %f10, %f0, %f10};",
    "red": "red.global.add.f32 [%rd3], %f0;",
    "red.v4": "red.global.add.v4.f32 [%rd3], {%f10, %f10, %f10, %f0};",
    "atom": "atom.global.add.f32 %f11, [%rd3], %f0;",
    "address of a load": "mov.b32 %r8, %f0; and.b32 %r8, %r8, 0; cvt.u64.u32 %rd4, %r8;"
    "add.s64 %rd4, %rd4, %rd3; ld.global.f32 %f11, [%rd4];",
    "address of a store": "mov.b32 %r8, %f0; and.b32 %r8, %r8, 0; add.u32 %r8, %r8, %r4;"
    "st.shared.u32 [%r8], %r6;",
    "branch": "setp.gt.f32 %p5, %f0, 0f00000000; @%p5 bra end;",
    "guard of a store": "setp.gt.f32 %p5, %f0, 0f00000000; @%p5 st.global.f32 [%rd3], %f10;",
}


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
def test_what_leaves_a_thread_must_be_defined(leak):
    run(FILL_A, FILL_B, PUBLISH, multiply(), leak)
    assert USES in fault(multiply(), leak).message


# %f0 and its bits %r8 are undefined; %d, of its type, goes to global memory.
SPREADS = {
    "f32": [
        "add.f32 %d, %f0, %f10;", "sub.f32 %d, %f10, %f0;", "mul.f32 %d, %f10, %f0;",
        "mul.rz.f32 %d, %f0, %f10;", "fma.rn.f32 %d, %f10, %f10, %f0;", "neg.f32 %d, %f0;",
        "fma.rn.ftz.f32 %d, %f10, %f0, %f10;", "max.f32 %d, %f0, %f10;",
        "min.f32 %d, %f10, %f0;", "max.NaN.f32 %d, %f10, %f0;", "abs.f32 %d, %f0;",
        "ex2.approx.ftz.f32 %d, %f0;", "lg2.approx.f32 %d, %f0;", "rcp.approx.f32 %d, %f0;",
        "sqrt.rn.f32 %d, %f0;", "div.rn.f32 %d, %f10, %f0;", "mov.f32 %d, %f0;",
        "cvt.rzi.f32.f32 %d, %f0;", "add.sat.f32 %d, %f0, %f10;",
        "selp.f32 %d, %f0, %f10, %p3;", "setp.gt.f32 %p5, %f0, %f10; selp.f32 %d, %f10, %f11, %p5;",
        "copysign.f32 %d, %f0, %f10;", "tanh.approx.f32 %d, %f0;",
    ],
    "u32": [
        "cvt.rn.f16x2.f32 %d, %f0, %f10;", "cvt.rn.f16x2.f32 %d, %f10, %f0;",
        "cvt.rn.bf16x2.f32 %d, %f10, %f0;", "cvt.rzi.s32.f32 %d, %f0;", "mov.b32 %d, %f0;",
        "add.u32 %d, %r8, %r1;", "mul.lo.u32 %d, %r1, %r8;", "mad.lo.u32 %d, %r1, %r1, %r8;",
        "mul.hi.u32 %d, %r8, %r1;", "and.b32 %d, %r8, %r1;", "xor.b32 %d, %r1, %r8;",
        "shl.b32 %d, %r8, 2;", "shr.s32 %d, %r8, 2;", "not.b32 %d, %r8;",
        "lop3.b32 %d, %r1, %r1, %r8, 0x96;", "prmt.b32 %d, %r8, %r1, 0x5410;",
        "bfe.u32 %d, %r8, 4, 8;", "bfi.b32 %d, %r8, %r1, 4, 8;", "popc.b32 %d, %r8;",
        "clz.b32 %d, %r8;", "brev.b32 %d, %r8;", "shf.l.wrap.b32 %d, %r8, %r1, 4;",
        "min.s32 %d, %r8, %r1;", "div.u32 %d, %r8, %r6;", "rem.u32 %d, %r8, %r6;",
        "add.f16x2 %d, %r8, %r6;", "mul.bf16x2 %d, %r6, %r8;", "fma.rn.f16x2 %d, %r6, %r6, %r8;",
        "ex2.approx.f16x2 %d, %r8;", "max.bf16x2 %d, %r8, %r6;",
        "cvt.u16.u32 %h1, %r8; cvt.u32.u16 %d, %h1;",
        "mov.b32 {%h1, %h2}, %r8; cvt.u32.u16 %d, %h2;",
        "cvt.rn.f16.f32 %h1, %f0; mov.b32 %d, {%h2, %h1};",
        "cvt.rn.bf16.f32 %h1, %f0; mov.b32 %d, {%h1, %h2};",
        "shfl.sync.bfly.b32 %d, %r8, 1, 31, -1;", "shfl.sync.idx.b32 %d, %r8, %r1, 31, -1;",
        "setp.gt.f32 %p5, %f0, %f10; vote.sync.ballot.b32 %d, %p5, -1;",
        "setp.gt.f32 %p5, %f0, %f10; vote.sync.any.pred %p6, %p5, -1; selp.b32 %d, 1, 0, %p6;",
        "redux.sync.add.u32 %d, %r8, -1;",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f4, %f5, %f6, %f7},"
        "{%r8, %r6, %r6, %r6}, {%r6, %r6}, {%f10, %f10, %f10, %f10}; mov.b32 %d, %f4;",
    ],
    "u64": [
        "mov.b64 %d, {%r1, %r8};", "cvt.u64.u32 %d, %r8;", "mul.wide.u32 %d, %r8, 4;",
        "cvt.f64.f32 %fd1, %f0; fma.rn.f64 %fd1, %fd1, %fd1, %fd1; mov.b64 %d, %fd1;",
    ],
}  # fmt: skip
RESULT = {"f32": "%f20", "u32": "%r20", "u64": "%rd20"}


@pytest.mark.parametrize(("kind", "step"), [(k, step) for k in SPREADS for step in SPREADS[k]])
def test_what_is_computed_of_it_is_undefined_too(kind, step):
    given = "mov.b32 %r8, %f0; mov.u16 %h2, 1; mov.f32 %f11, 0f3f800000;"
    body = f"{given} {step} st.global.{kind} [%rd3], %d;".replace("%d", RESULT[kind])
    run(FILL_A, FILL_B, PUBLISH, multiply(), body)
    assert USES in fault(multiply(), body).message


def test_a_lane_that_selects_something_else_is_defined():
    body = "selp.f32 %f0, %f10, %f0, %p3; st.global.f32 [%rd3], %f0;"
    assert (run(multiply(), body)[:, 0] == 3).all()


def test_only_rows_of_unwritten_a_are_undefined():
    """Warp 0 holds rows 0 to 15, and only the other warps have written theirs."""
    filled = "@%p2 " + FILL_A + FILL_B + PUBLISH
    out = run(filled, multiply(), "@%p2 " + STORE)
    assert (out[32:] == 16).all()
    assert fault(filled, multiply(), STORE).warp == 0


def test_only_columns_of_unwritten_b_are_undefined():
    """Rows 0 to 3 of B: lanes 0 and 1 of every four hold its columns 0 to 3."""
    some = "and.b32 %r7, %r1, 7; setp.lt.u32 %p4, %r7, 4; and.pred %p4, %p4, %p1;"
    filled = FILL_A + some + FILL_B.replace("%p1", "%p4") + PUBLISH
    columns = "and.b32 %r7, %r1, 3; setp.lt.u32 %p4, %r7, 2;"
    out = run(filled, multiply(), columns, "@%p4 " + STORE)
    assert (out.reshape(-1, 4, 4)[:, :2] == 16).all()
    assert fault(filled, multiply(), STORE).lane == 2


def test_a_sum_with_an_undefined_product_is_undefined():
    later = FILL_A + FILL_B + PUBLISH
    assert USES in fault(multiply(), later, multiply(product(add="%p3")), STORE).message
    assert (run(multiply(), later, multiply(product(add="%p0")), STORE) == 16).all()


def test_a_product_of_undefined_registers_is_undefined():
    """A from registers: dS of a P that nobody computed."""
    pack = "".join(f"cvt.rn.f16x2.f32 %r{20 + n}, %f0, %f10;" for n in range(4))
    step = multiply(product("{%r20, %r21, %r22, %r23}"))
    run(FILL_A, FILL_B, PUBLISH, multiply(), pack, step, STORE)
    assert USES in fault(FILL_B, PUBLISH, multiply(), pack, step, STORE).message


@pytest.mark.parametrize(
    "store",
    [
        "st.shared.f32 [%r4], %f0;",
        "st.shared.v4.f32 [%r4], {%f10, %f10, %f10, %f0};",
        "mov.b32 %r8, %f0; stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r4], {%r6, %r6, %r6, %r8};",
    ],
    ids=["st", "st.v4", "stmatrix"],
)
def test_a_store_to_shared_memory_leaves_it_unwritten(store):
    load = "bar.sync 0; ld.shared.v4.f32 {%f20, %f21, %f22, %f23}, [%r4];"
    run(FILL_A, FILL_B, PUBLISH, multiply(), store, load)
    found = fault(FILL_A, PUBLISH, multiply(), store, load)
    assert "nothing has written" in found.message
    assert "ld.shared" in str(found)


def test_what_is_unwritten_may_be_written_while_the_product_runs():
    """There is nothing to spoil; what was written is being read until the wait."""
    commit, wait = END.split(";")[:2]
    run(FENCE, product(), commit + ";", FILL_A, wait + ";")
    with pytest.raises(EmulationError, match="what an asynchronous operation still reads"):
        run(FILL_A, FILL_B, PUBLISH, FENCE, product(), commit + ";", FILL_A, wait + ";")


@pytest.mark.parametrize("seed", SCHEDULES)
def test_lanes_that_part_and_meet_keep_what_they_hold(seed):
    """Rows of warp 0 are undefined; its lanes 0 to 15 replace theirs on a way of their own."""
    filled = "@%p2 " + FILL_A + FILL_B + PUBLISH
    part = """setp.ge.u32 %p6, %r1, 16; @%p6 bra met; mov.f32 %f0, %f10; mov.f32 %f1, %f10;
        mov.f32 %f2, %f10; mov.f32 %f3, %f10; met: bar.warp.sync -1;"""
    out = run(filled, multiply(), part, "or.pred %p6, %p1, %p2; @%p6 " + STORE, seed=seed)
    assert (out[:16] == 3).all()
    assert (out[32:] == 16).all()
    assert fault(filled, multiply(), part, STORE, seed=seed).lane == 16


def test_a_bulk_store_of_unwritten_memory_is_a_fault():
    body = """setp.ne.u32 %p6, %r1, 0; @%p6 bra end;
        cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2], 64;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"""
    run(FILL_A, PUBLISH, body)
    assert "nothing has written" in fault(body).message
