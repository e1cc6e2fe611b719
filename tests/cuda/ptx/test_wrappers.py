"""Every instruction wrapper does what its comment says, on every device."""

import ml_dtypes
import numpy as np
import pytest

WORDS = np.arange(128, dtype=np.uint32)
TYPES = {"kFP16": np.float16, "kBF16": ml_dtypes.bfloat16}


def test_cp_async_copies_16_bytes_a_thread(run_lines):
    body = """
    ptx::cp_async_16b(room + thread * 16, in + (31 - thread) * 16);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    ptx::bar_sync();
    ptx::st_global_16b(out + thread * 16, ptx::ld_shared_16b(room + thread * 16));
    """
    headers = ["ptx/cp_async.cuh", "ptx/barrier.cuh", "ptx/memory.cuh"]
    got = run_lines(body, WORDS, headers=headers, out_bytes=512, dtype=np.uint32, smem_bytes=512)
    np.testing.assert_array_equal(got.reshape(32, 4), WORDS.reshape(32, 4)[::-1])


def test_cp_async_or_zero_reads_nothing_where_invalid(run_lines):
    body = """
    const bool valid = thread % 3 == 0;
    ptx::cp_async_16b_or_zero(room + thread * 16, valid ? in + thread * 16 : 0, valid);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    ptx::bar_sync();
    ptx::st_global_16b(out + thread * 16, ptx::ld_shared_16b(room + thread * 16));
    """
    headers = ["ptx/cp_async.cuh", "ptx/barrier.cuh", "ptx/memory.cuh"]
    got = run_lines(
        body, WORDS + 1, headers=headers, out_bytes=512, dtype=np.uint32, smem_bytes=512
    )
    valid = (np.arange(32) % 3 == 0)[:, None]
    np.testing.assert_array_equal(
        got.reshape(32, 4), np.where(valid, (WORDS + 1).reshape(32, 4), 0)
    )


def test_stores_that_l2_keeps_are_stores(run_lines):
    body = """
    const Chunk c = ptx::ld_global_16b(in + thread * 16);
    float x[4];
    for (int i = 0; i < 4; ++i) x[i] = __uint_as_float(c.word[i]);
    ptx::st_global_f32x4_kept(reinterpret_cast<float*>(out + thread * 16), x);
    """
    got = run_lines(
        body, WORDS, headers=["ptx/memory.cuh"], out_bytes=512, dtype=np.uint32, smem_bytes=0
    )
    np.testing.assert_array_equal(got, WORDS)


def test_a_discarded_line_is_lost_and_its_neighbours_are_not(run_lines):
    body = """
    ptx::st_global_16b(out + thread * 16, ptx::ld_global_16b(in + thread * 16));
    ptx::bar_warp_sync();
    if (thread == 0) ptx::discard_128b(reinterpret_cast<const float*>(out + 128));
    """
    headers = ["ptx/barrier.cuh", "ptx/cache_policy.cuh", "ptx/memory.cuh"]
    got = run_lines(body, WORDS, headers=headers, out_bytes=512, dtype=np.uint32)
    np.testing.assert_array_equal(np.delete(got, range(32, 64)), np.delete(WORDS, range(32, 64)))


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_deals_rows_of_8_to_quads(run_lines, transposed):
    elements = np.arange(256, dtype=np.uint16)
    body = f"""
    ptx::st_shared_16b(room + thread * 16, ptx::ld_global_16b(in + thread * 16));
    ptx::bar_warp_sync();
    Chunk c;
    ptx::ldmatrix_x4{"_trans" if transposed else ""}(c.word, room + thread * 16);
    ptx::st_global_16b(out + thread * 16, c);
    """
    headers = ["ptx/ldmatrix.cuh", "ptx/barrier.cuh", "ptx/memory.cuh"]
    got = run_lines(
        body, elements, headers=headers, out_bytes=512, dtype=np.uint16, smem_bytes=512
    ).reshape(32, 4, 2)
    matrices = elements.reshape(4, 8, 8)
    matrices = matrices.transpose(0, 2, 1) if transposed else matrices
    lane, number, half = np.ogrid[:32, :4, :2]
    np.testing.assert_array_equal(got, matrices[number, lane // 4, 2 * (lane % 4) + half])


@pytest.mark.parametrize("name", TYPES)
def test_mma_adds_a_times_b_to_c(run_lines, name):
    random = np.random.default_rng(3)
    a, b = (random.standard_normal(shape).astype(TYPES[name]) for shape in ((16, 16), (16, 8)))
    c = random.standard_normal((16, 8)).astype(np.float32)
    lane, pair = np.arange(32)[:, None], np.arange(2)[None]
    group, quad = lane // 4, 2 * (lane % 4) + pair
    rows = [(group, quad), (group + 8, quad), (group, quad + 8), (group + 8, quad + 8)]
    words = [np.ascontiguousarray(a[r, k]).view(np.uint32) for r, k in rows]
    words += [np.ascontiguousarray(b[k, group]).view(np.uint32) for k in (quad, quad + 8)]
    words += [c[group + 8 * (e // 2), quad[:, e % 2 : e % 2 + 1]].view(np.uint32) for e in range(4)]
    body = f"""
    const u32* word = reinterpret_cast<const u32*>(in) + thread * 10;
    const u32 a[4] = {{word[0], word[1], word[2], word[3]}};
    const u32 b[2] = {{word[4], word[5]}};
    float d[4];
    for (int e = 0; e < 4; ++e) d[e] = reinterpret_cast<const float*>(word)[6 + e];
    ptx::mma_m16n8k16<DType::{name}>(d, a, b, d);
    for (int e = 0; e < 4; ++e) reinterpret_cast<float*>(out)[thread * 4 + e] = d[e];
    """
    given = np.concatenate(words, axis=1)
    got = run_lines(body, given, headers=["ptx/mma.cuh"], out_bytes=512, dtype=np.float32).reshape(
        32, 2, 2
    )
    truth = a.astype(np.float64) @ b.astype(np.float64) + c
    # Float32 sums of products: at most one rounding a term, each of the size of all terms.
    terms = abs(a.astype(np.float64)) @ abs(b.astype(np.float64)) + abs(c)
    expected, allowed = (
        np.stack([x[group, quad], x[group + 8, quad]], axis=1)
        for x in (truth, 17 * 2.0**-23 * terms)
    )
    assert (np.abs(got - expected) <= allowed).all()


@pytest.mark.parametrize("name", TYPES)
def test_pack2_rounds_to_nearest_even_and_puts_the_first_low(run_lines, name):
    values = np.array([1.0, -2.0, 1 + 2.0**-9, 1 + 3 * 2.0**-9, 1 + 2.0**-12, 1e-30], np.float32)
    given = np.resize(values, 64)
    body = f"""
    const float* value = reinterpret_cast<const float*>(in) + thread * 2;
    reinterpret_cast<u32*>(out)[thread] = ptx::pack2<DType::{name}>(value[0], value[1]);
    """
    got = run_lines(body, given, headers=["ptx/convert.cuh"], out_bytes=128, dtype=np.uint16)
    np.testing.assert_array_equal(got, given.astype(TYPES[name]).view(np.uint16))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("ptx::ex2(x)", np.exp2),
        ("ptx::lg2(x)", np.log2),
        ("ptx::rcp(x)", lambda x: 1 / x),
        ("ptx::fma_rn(x, x, -1.0f)", lambda x: x.astype(np.float64) ** 2 - 1),
        ("ptx::mul_rn(x, 3.0f)", lambda x: x * 3),
        ("ptx::add_rn(x, 3.0f)", lambda x: x + 3),
        ("ptx::sub_rn(x, 3.0f)", lambda x: x - 3),
        ("ptx::max(x, 2.0f)", lambda x: np.fmax(x, 2)),
        ("ptx::min(x, 2.0f)", lambda x: np.fmin(x, 2)),
    ],
)
def test_arithmetic_is_that_of_ieee_or_within_its_approximation(run_lines, expression, expected):
    given = np.linspace(0.5, 7, 30, dtype=np.float32)
    given = np.concatenate([given, np.float32([np.inf, np.nan])])
    body = f"""
    const float x = reinterpret_cast<const float*>(in)[thread];
    reinterpret_cast<float*>(out)[thread] = {expression};
    """
    got = run_lines(body, given, headers=["ptx/math.cuh"], out_bytes=128, dtype=np.float32)
    np.testing.assert_allclose(got, expected(given), rtol=3e-7, atol=3e-7)


def test_ex2_of_minus_infinity_is_zero(run_lines):
    given = np.full(32, -np.inf, np.float32)
    body = """
    reinterpret_cast<float*>(out)[thread] = ptx::ex2(reinterpret_cast<const float*>(in)[thread]);
    """
    got = run_lines(body, given, headers=["ptx/math.cuh"], out_bytes=128, dtype=np.float32)
    np.testing.assert_array_equal(got, np.zeros(32))


def test_shfl_bfly_swaps_lanes(run_lines):
    given = np.arange(32, dtype=np.float32)
    body = """
    const float mine = reinterpret_cast<const float*>(in)[thread];
    reinterpret_cast<float*>(out)[thread] = ptx::shfl_bfly(mine, 2);
    """
    got = run_lines(body, given, headers=["ptx/warp.cuh"], out_bytes=128, dtype=np.float32)
    np.testing.assert_array_equal(got, np.arange(32) ^ 2)


@pytest.mark.parametrize("lane", [0, 17, 99])
def test_vote_any_tells_all_lanes_what_one_says(run_lines, lane):
    body = f"""
    reinterpret_cast<u32*>(out)[thread] = ptx::vote_any(thread == {lane}) ? 1 : 0;
    """
    got = run_lines(body, WORDS, headers=["ptx/warp.cuh"], out_bytes=128, dtype=np.uint32)
    np.testing.assert_array_equal(got, np.full(32, int(lane < 32)))


@pytest.mark.parametrize("lane", [0, 17, 31])
def test_redux_max_tells_all_lanes_the_largest_number(run_lines, lane):
    given = np.random.default_rng(lane).integers(-(2**31), 0, 32, np.int32)
    given[lane] = -1
    body = """
    const i32 mine = reinterpret_cast<const i32*>(in)[thread];
    reinterpret_cast<i32*>(out)[thread] = ptx::redux_max(mine);
    """
    got = run_lines(body, given, headers=["ptx/redux.cuh"], out_bytes=128, dtype=np.int32)
    np.testing.assert_array_equal(got, np.full(32, -1))


def test_predicated_stores_leave_the_rest_untouched(run_lines):
    body = """
    const bool valid = thread % 2 == 1;
    ptx::st_global_16b_if(out + thread * 16, ptx::ld_global_16b(in + thread * 16), valid);
    float* tail = reinterpret_cast<float*>(out) + 128;
    ptx::st_global_f32_if(valid ? tail + thread : nullptr, 1.0f, valid);
    """
    got = run_lines(body, WORDS, headers=["ptx/memory.cuh"], out_bytes=640, dtype=np.uint32)
    valid = (np.arange(32) % 2 == 1)[:, None]
    untouched = 0xA5A5A5A5
    np.testing.assert_array_equal(
        got[:128].reshape(32, 4), np.where(valid, WORDS.reshape(32, 4), untouched)
    )
    np.testing.assert_array_equal(got[128:], np.where(valid[:, 0], 0x3F800000, untouched))


def test_ctaid_x_is_the_number_of_the_block(run_lines):
    body = "    if (thread == 0) reinterpret_cast<u32*>(out)[ptx::ctaid_x()] = ptx::ctaid_x();"
    got = run_lines(
        body,
        WORDS,
        headers=["ptx/special_register.cuh"],
        out_bytes=20,
        dtype=np.uint32,
        blocks=5,
    )
    np.testing.assert_array_equal(got, np.arange(5))
