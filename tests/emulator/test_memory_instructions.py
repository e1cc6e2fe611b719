"""Loads and stores of all widths, cp.async, ldmatrix and mma.sync against their definitions."""

import ml_dtypes
import numpy as np
import pytest
from lanes import launch, run_lanes, text

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.options import EmulatorOptions

SMEM = "\t.shared .align 16 .b8 tile[4096];"
_STORE = """ ld.param.u64 %rd3, [p1]; mul.wide.u32 %rd4, %r50, 4; add.s64 %rd3, %rd3, %rd4;
    st.global.u32 [%rd3], %r9;"""
_TID = "mov.u32 %r50, %tid.x; "


def _first(body):
    return _TID + body


@pytest.mark.parametrize("kind", ["u8", "u16", "u32", "u64", "f32"])
@pytest.mark.parametrize("space", ["shared", "local"])
def test_every_width_comes_back_as_stored(kind, space):
    size = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "f32": 4}[kind]
    register = {"u8": "%h1", "u16": "%h1", "u64": "%rd1", "f32": "%f1"}.get(kind, "%r1")
    widen = {"%h1": "cvt.u32.u16 %d, %h1;", "%rd1": "cvt.u32.u64 %d, %rd1;",
             "%f1": "mov.b32 %d, %f1;", "%r1": "mov.u32 %d, %r1;"}[register]  # fmt: skip
    narrow = {"%h1": "cvt.u16.u32 %h1, %a0;", "%rd1": "cvt.u64.u32 %rd1, %a0;",
              "%f1": "mov.b32 %f1, %a0;", "%r1": "mov.u32 %r1, %a0;"}[register]  # fmt: skip
    body = f"""{narrow} mov.u32 %r5, tile; mad.lo.u32 %r5, %r50, {size}, %r5;
        cvt.u64.u32 %rd5, %r5;
        st.{space}.{kind} [{"%r5" if space == "shared" else "%rd5"}], {register};
        ld.{space}.{kind} {register}, [{"%r5" if space == "shared" else "%rd5"}]; {widen}"""
    values = np.arange(64, dtype=np.uint32) * 3
    variable = f"\t.{space} .align 16 .b8 tile[4096];"
    assert run_lanes(body, values, shared=variable).tolist() == values.tolist()


def test_signed_bytes_are_extended_on_load():
    body = """mov.u32 %r5, tile; mad.lo.u32 %r5, %r50, 4, %r5; st.shared.u32 [%r5], %a0;
        ld.shared.s8 %d, [%r5+1];"""
    one = np.array([0x0000FE00] * 32, np.uint32)
    assert run_lanes(body, one, shared=SMEM, out=np.int32)[0] == -2


def test_vectors_keep_their_order():
    body = """mov.u32 %r5, tile; shl.b32 %r6, %r50, 4; add.u32 %r5, %r5, %r6;
        add.u32 %r1, %a0, 1; add.u32 %r2, %a0, 2; add.u32 %r3, %a0, 3;
        st.shared.v4.u32 [%r5], {%a0, %r1, %r2, %r3}; ld.shared.v2.u32 {%r7, %r8}, [%r5+8];
        ld.shared.v4.u32 {%r9, %r10, %r11, %r12}, [%r5];
        mad.lo.u32 %d, %r8, 1000, %r10;"""
    a = np.arange(32, dtype=np.uint32)
    assert run_lanes(body, a, shared=SMEM).tolist() == [(x + 3) * 1000 + x + 1 for x in range(32)]


def test_a_line_that_is_discarded_becomes_ones():
    body = """ld.param.u64 %rd3, [p0]; setp.eq.u32 %p1, %r50, 0; bar.sync 0;
        @%p1 discard.global.L2 [%rd3], 128; bar.sync 0;
        mul.wide.u32 %rd4, %r50, 4; add.s64 %rd3, %rd3, %rd4; ld.global.u32 %d, [%rd3];"""
    values = np.arange(64, dtype=np.uint32)
    assert run_lanes(body, values).tolist() == [2**32 - 1] * 32 + values[32:].tolist()


def test_what_is_discarded_is_a_whole_line():
    body = """ld.param.u64 %rd3, [p0]; setp.eq.u32 %p1, %r50, 7;
        @%p1 discard.global.L2 [%rd3+16], 128; mov.u32 %d, %a0;"""
    with pytest.raises(EmulationError, match="misaligned: the address is not a multiple of 128"):
        run_lanes(body, np.arange(64, dtype=np.uint32))


def test_generic_addresses_reach_every_space():
    body = """mov.u32 %r5, tile; shl.b32 %r6, %r50, 2; add.u32 %r5, %r5, %r6; cvt.u64.u32 %rd1, %r5;
        cvta.shared.u64 %rd2, %rd1; st.u32 [%rd2], %a0;
        cvta.to.shared.u64 %rd3, %rd2; cvt.u32.u64 %r7, %rd3; ld.shared.u32 %r8, [%r7];
        isspacep.shared %p1, %rd2; selp.b32 %d, %r8, 0, %p1;"""
    a = np.arange(32, dtype=np.uint32) + 5
    assert run_lanes(body, a, shared=SMEM).tolist() == a.tolist()


def test_a_uniform_load_serves_all_lanes():
    table = "\t.global .align 4 .u32 unused;"
    body = "ld.param.u64 %rd1, [p0]; ld.global.nc.u32 %r1, [%rd1+8]; add.u32 %d, %r1, %a0;"
    a = np.arange(64, dtype=np.uint32)
    assert run_lanes(body, a, registers=table).tolist() == (a + 2).tolist()


def test_constant_tables_have_their_initial_values():
    ptx = text(
        """mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; mov.u64 %rd2, table;
        add.s64 %rd2, %rd2, %rd1; ld.const.u32 %r2, [%rd2]; ld.param.u64 %rd3, [p0];
        add.s64 %rd3, %rd3, %rd1; st.global.u32 [%rd3], %r2;""", 1,
    )  # fmt: skip
    ptx = ptx.replace(".visible", ".const .align 4 .u32 table[4] = {7, 0x10, 9, 1};\n.visible", 1)
    out, _ = launch(ptx, [], 16, 1, 4)
    assert out.view(np.uint32).tolist() == [7, 16, 9, 1]


@pytest.mark.parametrize("size", [4, 8, 16])
def test_cp_async_copies_and_fills_with_zeros(size):
    body = f"""mov.u32 %r5, tile; shl.b32 %r6, %r50, 4; add.u32 %r5, %r5, %r6;
        ld.param.u64 %rd1, [p0]; cvt.u64.u32 %rd2, %r6; add.s64 %rd1, %rd1, %rd2;
        setp.lt.u32 %p1, %r50, 16; selp.b32 %r7, {size}, 0, %p1;
        cp.async.ca.shared.global [%r5], [%rd1], {size}, %r7;
        cp.async.commit_group; cp.async.wait_group 0; ld.shared.u32 %d, [%r5+{size - 4}];"""
    a = np.arange(1, 129, dtype=np.uint32)
    out, _ = launch(
        text(_first(body.replace("%d", "%r9")) + _STORE, 2, shared=SMEM), [a], 128, 1, 32
    )
    last = size // 4 - 1
    expected = [int(a[4 * k + last]) if k < 16 else 0 for k in range(32)]
    assert out.view(np.uint32).tolist() == expected


def test_groups_land_in_order_and_only_as_waited_for():
    body = (
        _first("""mov.u32 %r5, tile; mad.lo.u32 %r5, %r50, 16, %r5; ld.param.u64 %rd1, [p0];
        mul.wide.u32 %rd2, %r50, 16; add.s64 %rd1, %rd1, %rd2;
        cp.async.cg.shared.global [%r5], [%rd1], 16; cp.async.commit_group;
        cp.async.cg.shared.global [%r5+1024], [%rd1], 16; cp.async.commit_group;
        cp.async.wait_group 1; ld.shared.u32 %r9, [%r5];
        cp.async.wait_all; ld.shared.u32 %r8, [%r5+1024]; add.u32 %r9, %r9, %r8;""")
        + _STORE
    )
    a = np.arange(128, dtype=np.uint32)
    out, _ = launch(text(body, 2, shared=SMEM), [a], 128, 1, 32)
    assert out.view(np.uint32).tolist() == (2 * a[::4]).tolist()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix_hands_out_fragments(count, trans):
    registers = ", ".join(f"%r{10 + k}" for k in range(count))
    stores = "".join(f"st.global.u32 [%rd3+{128 * k}], %r{10 + k};" for k in range(count))
    body = _first(f"""mov.u32 %r5, tile; mad.lo.u32 %r5, %r50, 16, %r5; ld.param.u64 %rd1, [p0];
        mul.wide.u32 %rd2, %r50, 16; add.s64 %rd1, %rd1, %rd2;
        ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%rd1];
        st.shared.v4.u32 [%r5], {{%r1, %r2, %r3, %r4}}; bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%r5];
        ld.param.u64 %rd3, [p1]; mul.wide.u32 %rd4, %r50, 4; add.s64 %rd3, %rd3, %rd4; {stores}""")
    halves = np.arange(256, dtype=np.uint16)
    out, _ = launch(text(body, 2, shared=SMEM), [halves], 128 * count, 1, 32)
    found = out.view(np.uint16).reshape(count, 8, 4, 2)  # matrix, row g, t, element
    matrices = halves.reshape(4, 8, 8)[:count]
    if trans:
        matrices = matrices.transpose(0, 2, 1)
    np.testing.assert_array_equal(found.reshape(count, 8, 8), matrices)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)], ids=["fp16", "bf16"]
)
@pytest.mark.parametrize("depth", [1, 3])
def test_mma_multiplies_the_fragments_of_the_isa(kind, dtype, depth):
    """A chain of `depth` products through one accumulator, that starts at 1."""
    random = np.random.default_rng(5)
    a = random.standard_normal((depth, 16, 16)).astype(dtype)
    b = random.standard_normal((depth, 16, 8)).astype(dtype)
    lane = np.arange(32)
    g, t = lane // 4, lane % 4
    words_a = np.empty((depth, 4, 32, 2), np.uint16)
    words_b = np.empty((depth, 2, 32, 2), np.uint16)
    for e in range(2):
        for k in range(4):
            words_a[:, k, :, e] = a.view(np.uint16)[:, g + 8 * (k & 1), 2 * t + e + 8 * (k >> 1)]
        for k in range(2):
            words_b[:, k, :, e] = b.view(np.uint16)[:, 2 * t + e + 8 * k, g]
    body = _first(
        "mov.f32 %f10, 0f3F800000; mov.f32 %f11, %f10; mov.f32 %f12, %f10; mov.f32 %f13, %f10;"
        "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd5, [p1]; mul.wide.u32 %rd2, %r50, 4;"
        "add.s64 %rd1, %rd1, %rd2; add.s64 %rd5, %rd5, %rd2;"
    )
    for step in range(depth):
        body += "".join(f"ld.global.u32 %r{k}, [%rd1+{512 * step + 128 * k}];" for k in range(4))
        body += "".join(
            f"ld.global.u32 %r{4 + k}, [%rd5+{256 * step + 128 * k}];" for k in range(2)
        )
        body += (f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
                 "{%f10, %f11, %f12, %f13}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, "
                 "{%f10, %f11, %f12, %f13};")  # fmt: skip
    body += "ld.param.u64 %rd3, [p2]; add.s64 %rd3, %rd3, %rd2;"
    body += "".join(f"st.global.f32 [%rd3+{128 * k}], %f{10 + k};" for k in range(4))
    out, _ = launch(text(body, 3), [words_a, words_b], 512, 1, 32)
    found = out.view(np.float32).reshape(4, 32)
    truth = np.einsum("dik,dkj->ij", a.astype(np.float64), b.astype(np.float64)) + 1
    # Float32 sums of products: at most one rounding a term, each of the size of all terms.
    terms = np.einsum("dik,dkj->ij", abs(a.astype(np.float64)), abs(b.astype(np.float64))) + 1
    allowed = (16 * depth + 1) * 2.0**-23 * terms
    for k in range(4):
        at = g + 8 * (k >> 1), 2 * t + (k & 1)
        assert (np.abs(found[k] - truth[at]) <= allowed[at]).all()


def test_results_do_not_depend_on_how_lanes_are_chunked():
    a = np.arange(4096, dtype=np.uint32)
    body = "mul.lo.u32 %d, %a0, %a0;"
    whole = run_lanes(body, a, threads=128)
    small = run_lanes(body, a, threads=128, options=EmulatorOptions(chunk_lanes=128))
    assert whole.tolist() == small.tolist() == (a * a).tolist()
