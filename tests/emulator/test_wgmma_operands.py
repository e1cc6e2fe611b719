"""The operands of a backward pass's wgmma: both MN-major, rows that lie on each other, mixed A."""

from __future__ import annotations

import numpy as np
import pytest
from lanes import launch, text

from flashsmith.emulator.copies.smem_layout import MatrixDescriptor

K, M, TILE = 16, 64, 1024  # dynamic shared memory begins at address 1024
RNG = np.random.default_rng(3)


def small(*shape):
    """Integers whose products and sums are exact."""
    return RNG.integers(-4, 5, shape).astype(np.float16)


def mn_major(matrix):
    """(K, rows) with rows side by side, in panels of 64 with a swizzle of 128 bytes.

    panel p: 16 lines of 128 bytes, line k holds rows 64p to 64p + 63 at that k,
    its 16-byte chunk c at c ^ (k % 8)
    """
    k, rows = matrix.shape
    lines = matrix.reshape(k, rows // 64, 8, 8).transpose(1, 0, 2, 3)  # panel, k, chunk, element
    at = np.arange(8)[None, :] ^ (np.arange(k) % 8)[:, None]
    return np.take_along_axis(lines, at[None, :, :, None], axis=2).reshape(-1)


def mn_major_at(start):
    return MatrixDescriptor(start, K * 128, 8 * 128, 0, 128).encode()


def k_major(matrix):
    """(rows, 16) without swizzle: 8 rows x 16 bytes, then the other half of K, then 8 more rows."""
    return matrix.reshape(-1, 8, 2, 8).transpose(0, 2, 1, 3).reshape(-1)


def step(n, a, b, *, adds, turned):
    registers = ", ".join(f"%acc{i}" for i in range(n // 2))
    return (f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{registers}}}, {a}, {b}, "
            f"%p{int(adds)}, 1, 1, {turned};")  # fmt: skip


def run(n, shared, steps, fragments=()):
    """The product, after steps over the bytes of `shared`; A of registers is in %r20 to %r23."""
    raw = np.concatenate([np.asarray(x).view(np.uint8) for x in shared])
    raw = np.pad(raw, (0, -raw.size % 2048))
    body = """mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p2];
        mov.u32 %r2, tile; mul.wide.u32 %rd3, %r1, 16; add.s64 %rd4, %rd1, %rd3;
        mad.lo.u32 %r3, %r1, 16, %r2; ld.param.u64 %rd5, [p1]; add.s64 %rd5, %rd5, %rd3;
        ld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%rd5];
        setp.ne.u32 %p0, %r1, %r1; setp.eq.u32 %p1, %r1, %r1;"""
    for begin in range(0, raw.size, 2048):
        body += f"""ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd4+{begin}];
            st.shared.v4.u32 [%r3+{begin}], {{%r10, %r11, %r12, %r13}};"""
    body += "".join(f"mov.f32 %acc{i}, 0f00000000;" for i in range(n // 2))
    body += "fence.proxy.async.shared::cta; bar.sync 0; wgmma.fence.sync.aligned;"
    body += "".join(steps) + "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    body += f"mul.wide.u32 %rd3, %r1, {2 * n}; add.s64 %rd2, %rd2, %rd3;"
    body += "".join(f"st.global.f32 [%rd2+{4 * i}], %acc{i};" for i in range(n // 2))
    ptx = text(body, 3, shared="\t.extern .shared .align 1024 .b8 tile[];",
               registers="\t.reg .f32 %acc<128>;")  # fmt: skip
    words = fragments if len(fragments) else np.zeros(512, np.uint32)
    out, _ = launch(ptx, [raw, words], 256 * n, 1, 128, smem_bytes=raw.size)
    # register 4j + 2i + c of lane l of warp w: row 16w + l/4 + 8i, column 8j + 2(l%4) + c
    held = out.view(np.float32).reshape(4, 8, 4, n // 8, 2, 2)  # w, l/4, l%4, j, i, c
    return held.transpose(0, 4, 1, 3, 2, 5).reshape(M, n)


def fragments_of(a):
    """A (64, 16) as four words a thread: rows l/4 (+ 8 in 1, 3), columns 2(l%4) (+ 8 in 2, 3)."""
    words = np.ascontiguousarray(a).view(np.uint32).reshape(4, 2, 8, 2, 4)  # w, i, l/4, half, l%4
    return np.ascontiguousarray(words.transpose(0, 2, 4, 3, 1)).reshape(-1)


@pytest.mark.parametrize("n", [64, 128, 256])
def test_both_operands_may_be_mn_major(n):
    a, b = small(K, M), small(K, n)
    begin = TILE + a.nbytes
    one = step(n, mn_major_at(TILE), mn_major_at(begin), adds=False, turned="1, 1")
    found = run(n, [mn_major(a), mn_major(b)], [one])
    assert np.array_equal(found, a.T.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("n", [64, 128, 256])
def test_steps_with_a_from_memory_and_from_registers_share_accumulators(n):
    """B stays MN-major; the products are added in one batch."""
    first, second, b = small(K, M), small(M, K), small(K, n)
    begin = TILE + first.nbytes
    steps = [
        step(n, mn_major_at(TILE), mn_major_at(begin), adds=False, turned="1, 1"),
        step(n, "{%r20, %r21, %r22, %r23}", mn_major_at(begin), adds=True, turned="1"),
    ]
    found = run(n, [mn_major(first), mn_major(b)], steps, fragments_of(second))
    wanted = (first.T.astype(np.float32) + second.astype(np.float32)) @ b.astype(np.float32)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("leading", [0, 128])
@pytest.mark.parametrize("stride", [0, 256])
def test_without_swizzle_either_stride_may_be_nought(leading, stride):
    """Nought lays both halves of K, or all groups of eight rows, on the first."""
    n = 64
    a, b = small(M, K), small(n, K)
    descriptor = MatrixDescriptor(TILE, leading, stride, 0, 0).encode()
    begin = TILE + a.nbytes
    plain = MatrixDescriptor(begin, 128, 256, 0, 0).encode()
    one = step(n, descriptor, plain, adds=False, turned="0, 0")
    found = run(n, [k_major(a), k_major(b)], [one])
    seen = a if leading else np.tile(a[:, :8], 2)
    seen = seen if stride else np.tile(seen[:8], (8, 1))
    assert np.array_equal(found, seen.astype(np.float32) @ b.astype(np.float32).T)
