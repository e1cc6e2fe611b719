"""Loads, stores, cp.async, ldmatrix, stmatrix, barriers and atomics."""
# ruff: noqa: E501 - a line of assembly stays one line

from __future__ import annotations

import numpy as np

from instruction_cases.case import PRELUDE, Case, same_floats

HEAD = 'extern "C" __global__ void __launch_bounds__({threads}) probe({params}) {{\n'


def _words(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint32)


def _kernel(body: str, threads: int = 128, params: str = "const u32* in, u32* out") -> str:
    return PRELUDE + HEAD.format(threads=threads, params=params) + body + "\n}\n"


def _widths() -> Case:
    """Every width of ld/st, global and shared, scalar and vector."""
    body = """
    __shared__ alignas(16) u8 tile[16 * 128];
    const u32 t = threadIdx.x, at = smem_address(tile) + 16 * (t ^ 5);
    const u32* src = in + 4 * t;
    u32 a, b, c, d; u16 h; u64 w, x;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(src));
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" :: "r"(at), "r"(d), "r"(c), "r"(b), "r"(a) : "memory");
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2+8];" : "=r"(a), "=r"(b) : "r"(at));
    asm volatile("ld.shared.u16 %0, [%1+2];" : "=h"(h) : "r"(at));
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(w) : "r"(at));
    asm volatile("{ .reg .u8 q; ld.shared.u8 q, [%1+5]; cvt.u32.u8 %0, q; }" : "=r"(c) : "r"(at));
    asm volatile("ld.shared.s8 %0, [%1+7];" : "=r"(d) : "r"(at));
    asm volatile("ld.global.nc.b64 %0, [%1+8];" : "=l"(x) : "l"(src));
    u32* to = out + 12 * t;
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" :: "l"(to), "r"(a), "r"(b) : "memory");
    asm volatile("st.global.b64 [%0+8], %1;" :: "l"(to), "l"(w) : "memory");
    asm volatile("st.global.u16 [%0+16], %1;" :: "l"(to), "h"(h) : "memory");
    asm volatile("st.global.u8 [%0+18], %1;" :: "l"(to), "r"(c) : "memory");
    asm volatile("st.global.u8 [%0+19], %1;" :: "l"(to), "r"(d) : "memory");
    asm volatile("st.global.b32 [%0+20], %1;" :: "l"(to), "r"(d) : "memory");
    asm volatile("st.global.v4.b32 [%0+32], {%1, %2, %3, %4};" :: "l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
    asm volatile("st.global.b64 [%0+24], %1;" :: "l"(to), "l"(x) : "memory");"""
    return Case("ld, st of every width", "ld.global, ld.shared, st.global, st.shared",
                _kernel(body), (_words(512, 1),), 128 * 48)  # fmt: skip


def _cp_async() -> Case:
    body = """
    __shared__ alignas(16) u32 tile[128 * 12];
    const u32 t = threadIdx.x, at = smem_address(tile) + 48 * t;
    const u32* src = in + 12 * t;
    const u32 bytes = t % 3 == 0 ? 0 : t % 3 == 1 ? 8 : 16;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(src) : "memory");
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(at + 16), "l"(src + 4), "r"(bytes) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" :: "r"(at + 32), "l"(src + 8) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at + 40), "l"(src + 10) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(at + 44), "l"(src + 11), "r"(t % 2 * 4) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int i = 0; i < 12; ++i) out[i * 128 + t] = tile[(i * 128 + 7 * t) % 1536];"""
    return Case("cp.async with zero fill", "cp.async.ca, cp.async.cg, commit_group, wait_group",
                _kernel(body), (_words(1536, 2),), 4 * 1536)  # fmt: skip


def _ldmatrix(trans: bool) -> Case:
    flag = ".trans" if trans else ""
    body = f"""
    __shared__ alignas(16) u32 tile[512];
    const u32 t = threadIdx.x;
    for (int i = 0; i < 16; ++i) tile[i * 32 + t] = in[i * 32 + t];
    __syncwarp();
    const u32 at = smem_address(tile) + 16 * ((t * 37 + 11) % 128);
    u32 a, b, c, d, e, f, g;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4{flag}.shared.b16 {{%0, %1, %2, %3}}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2{flag}.shared.b16 {{%0, %1}}, [%2];" : "=r"(e), "=r"(f) : "r"(at));
    asm volatile("ldmatrix.sync.aligned.m8n8.x1{flag}.shared.b16 {{%0}}, [%1];" : "=r"(g) : "r"(at));
    const u32 all[7] = {{a, b, c, d, e, f, g}};
    for (int i = 0; i < 7; ++i) out[i * 32 + t] = all[i];"""
    return Case(f"ldmatrix{flag}", f"ldmatrix.x1{flag}, .x2{flag}, .x4{flag}", _kernel(body, 32),
                (_words(512, 3),), 7 * 128, threads=32)  # fmt: skip


def _stmatrix(trans: bool) -> Case:
    flag = ".trans" if trans else ""
    body = f"""
    __shared__ alignas(16) u32 tile[512];
    const u32 t = threadIdx.x;
    for (int i = 0; i < 16; ++i) tile[i * 32 + t] = in[i * 32 + t];
    __syncwarp();
    const u32 at = smem_address(tile) + 16 * ((t * 37 + 11) % 32);
    const u32 a = in[t], b = in[32 + t], c = in[64 + t], d = in[96 + t];
    asm volatile("stmatrix.sync.aligned.m8n8.x4{flag}.shared.b16 [%0], {{%1, %2, %3, %4}};" :: "r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
    asm volatile("stmatrix.sync.aligned.m8n8.x2{flag}.shared.b16 [%0], {{%1, %2}};" :: "r"(at + 512), "r"(c), "r"(d) : "memory");
    asm volatile("stmatrix.sync.aligned.m8n8.x1{flag}.shared.b16 [%0], {{%1}};" :: "r"(at + 1024), "r"(d) : "memory");
    __syncwarp();
    for (int i = 0; i < 16; ++i) out[i * 32 + t] = tile[i * 32 + t];"""
    return Case(f"stmatrix{flag}", f"stmatrix.x1{flag}, .x2{flag}, .x4{flag}", _kernel(body, 32),
                (_words(512, 4),), 2048, threads=32)  # fmt: skip


def _barriers() -> Case:
    """Rounds of writes and reads by other warps; named barriers of two warps, arrive and sync."""
    body = """
    __shared__ u32 tile[128];
    const u32 t = threadIdx.x, pair = t / 64;
    tile[t] = in[t];
    asm volatile("bar.sync %0, 64;" :: "r"(pair + 1) : "memory");
    u32 sum = tile[t ^ 32];
    __syncthreads();
    tile[t] = sum * 3;
    if (t < 64) asm volatile("bar.arrive 5, 128;" ::: "memory");
    else { asm volatile("bar.sync 5, 128;" ::: "memory"); sum += tile[t - 64]; }
    out[t] = sum;"""
    return Case("bar.sync, bar.arrive", "bar.sync, bar.arrive with counts",
                _kernel(body), (_words(128, 5),), 512)  # fmt: skip


def _atomics() -> Case:
    """Orders do not matter: sums, minima and bits of integers, and exact float sums."""
    body = """
    const u32 t = threadIdx.x, v = in[t];
    if (blockIdx.x == 0 && t < 32) out[64 + t] = 0;
    u32 old; u64 wide;
    asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(out), "r"(v) : "memory");
    asm volatile("red.global.add.u32 [%0], %1;" :: "l"(out + 1), "r"(v) : "memory");
    asm volatile("red.global.max.u32 [%0], %1;" :: "l"(out + 2), "r"(v) : "memory");
    asm volatile("red.global.min.s32 [%0], %1;" :: "l"(out + 3), "r"(v) : "memory");
    asm volatile("red.global.or.b32 [%0], %1;" :: "l"(out + 4), "r"(v & t) : "memory");
    asm volatile("red.global.xor.b32 [%0], %1;" :: "l"(out + 5), "r"(v) : "memory");
    asm volatile("red.global.add.f32 [%0], %1;" :: "l"(out + 6), "f"((float)(v % 1024)) : "memory");
    asm volatile("atom.global.add.u64 %0, [%1], %2;" : "=l"(wide) : "l"(out + 8), "l"((u64)v << 8) : "memory");
    asm volatile("atom.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(out + 10), "r"(1000u) : "memory");
    asm volatile("red.global.add.u32 [%0], 1;" :: "l"(out + 16 + old % 32) : "memory");
    asm volatile("atom.global.cas.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(out + 11), "r"(0u), "r"(7u) : "memory");
    asm volatile("atom.global.exch.b32 %0, [%1], %2;" : "=r"(old) : "l"(out + 12), "r"(9u) : "memory");
    __shared__ u32 count;
    if (t == 0) count = 0;
    __syncthreads();
    asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(smem_address(&count)), "r"(v) : "memory");
    __syncthreads();
    if (t == 0) out[64 + blockIdx.x] = count;"""
    return Case("atomics", "atom, red: add, min, max, or, xor, inc, cas, exch",
                _kernel(body.replace("    if (blockIdx.x == 0 && t < 32) out[64 + t] = 0;\n", "")),
                (_words(128, 6),), 4 * 72, grid=3, compare=same_floats, unit="words")  # fmt: skip


def _vector_sums() -> Case:
    """Two and four sums at once; of whole numbers, so that the order does not matter."""
    body = """
    const u32 t = threadIdx.x;
    const float a = (float)(in[t] % 512), b = (float)(in[t + 128] % 512);
    float* to = (float*)out + 4 * (t % 32);
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" :: "l"(to), "f"(a), "f"(b), "f"(-a), "f"(-b) : "memory");
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" :: "l"(to + 128), "f"(b), "f"(a) : "memory");"""
    return Case("vector sums", "red.global.add.v2.f32, .v4.f32", _kernel(body), (_words(256, 8),),
                1024, grid=5, compare=same_floats, unit="words")  # fmt: skip


def _flags() -> Case:
    """Blocks in a chain: each waits for the flag of the one before, and adds to what it wrote."""
    body = """
    const u32 t = threadIdx.x, turn = blockIdx.x;
    u32* flag = out + 128;
    if (t == 0) {
        u32 seen;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        } while (seen != turn);
    }
    __syncthreads();
    out[t] = out[t] * 3 + in[t] + turn;
    __syncthreads();
    if (t == 0)
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
    if (t == 0)
        asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(flag), "r"(turn + 1) : "memory");"""
    return Case("flags between blocks", "ld.acquire.gpu, st.release.gpu, fence.acq_rel.gpu",
                _kernel(body), (_words(128, 9),), 4 * 129, grid=6)  # fmt: skip


def _divergence() -> Case:
    """Loops of different length a lane, and a shuffle after they meet again."""
    body = """
    const u32 t = threadIdx.x;
    u32 x = in[t], steps = 0;
    while (x != 1 && steps < 200) { x = x & 1 ? (3 * x + 1) & 0xfffff : x / 2; ++steps; }
    __syncwarp();
    out[t] = __shfl_xor_sync(0xffffffff, steps, 9) * 1000 + steps;"""
    return Case("divergence", "bra, warp divergence, bar.warp.sync",
                _kernel(body), (_words(128, 7) % np.uint32(5000),), 512)  # fmt: skip


def cases() -> list[Case]:
    return [
        _widths(),
        _cp_async(),
        _ldmatrix(False),
        _ldmatrix(True),
        _stmatrix(False),
        _stmatrix(True),
        _barriers(),
        _atomics(),
        _vector_sums(),
        _flags(),
        _divergence(),
    ]
