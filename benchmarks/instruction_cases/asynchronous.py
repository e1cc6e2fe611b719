"""mbarriers, TMA loads, stores and reductions, bulk copies, clusters."""
# ruff: noqa: E501 - a line of assembly stays one line

from __future__ import annotations

from math import prod

import numpy as np

from instruction_cases.case import PRELUDE, Case, Map

BOUNDS = 'extern "C" __global__ void __launch_bounds__({threads}) {extra}probe({params}) {{\n'
ALIGNED = """
    extern __shared__ char raw[];
    char* tile = (char*)(((u64)raw + 1023) & ~1023ull);
    __shared__ alignas(8) u64 barrier_word[2];
    const u32 t = threadIdx.x, smem = smem_address(tile), barrier = smem_address(barrier_word);
"""
COPY_OUT = "    for (u32 i = t; i < {words}; i += blockDim.x) out[{offset}i] = ((u32*)(tile + {start}))[i];\n"


def _kernel(body: str, params: str, *, threads: int = 128, extra: str = "") -> str:
    return PRELUDE + BOUNDS.format(threads=threads, params=params, extra=extra) + body + "\n}\n"


def _halves(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 2**16, n, dtype=np.uint16)


def _mbarrier() -> Case:
    """Phases, parities, tokens, counts and byte counts, as one thread sees them."""
    body = """
    __shared__ alignas(8) u64 word;
    const u32 b = smem_address(&word);
    if (threadIdx.x != 0) return;
    u32 n = 0; u64 token, other;
    auto test = [&](u32 parity) {
        u32 ok;
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ok) : "r"(b), "r"(parity) : "memory");
        out[n++] = ok;
    };
    auto passed = [&](u64 state) {
        u32 ok;
        asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ok) : "r"(b), "l"(state) : "memory");
        out[n++] = ok;
    };
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 3;" :: "r"(b) : "memory");
    test(0); test(1);
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(b) : "memory");
    test(0); passed(token);
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], 2;" : "=l"(other) : "r"(b) : "memory");
    test(0); test(1); passed(token); passed(other);
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 64;" :: "r"(b) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], 32;" : "=l"(token) : "r"(b) : "memory");
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" :: "r"(b) : "memory");
    test(0); test(1); passed(token);
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 32;" :: "r"(b) : "memory");
    test(1);
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 64;" :: "r"(b) : "memory");
    test(0); test(1); passed(token);
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(b) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(b) : "memory");
    test(0); test(1);"""
    return Case("mbarrier", "mbarrier.init, arrive, expect_tx, complete_tx, test_wait, inval",
                _kernel(body, "u32* out", threads=32), (), 4 * 17, threads=32)  # fmt: skip


def _tma_shape(rank: int, swizzle: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Dims, strides in bytes and box, 16-bit elements; the innermost box row fills the swizzle."""
    inner = (swizzle or 48) // 2
    dims = (inner + 43, 11, 5, 3, 2)[:rank]
    strides, step = [], (dims[0] * 2 + 15) // 16 * 16 + 16
    for extent in dims[1:]:
        strides.append(step)
        step *= extent
    box = (inner, 8, 3, 2, 2)[:rank]
    return dims, tuple(strides), box


def _corners(rank: int, dims: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray:
    """Corners in bounds, beyond the end and before the start of every dimension."""
    rng = np.random.default_rng(rank)
    low = [-(b // 2) for b in box]
    high = [d - b // 2 for d, b in zip(dims, box, strict=True)]
    corners = [[0] * rank, low, high]
    corners += [
        [int(rng.integers(a, b + 1)) for a, b in zip(low, high, strict=True)] for _ in range(5)
    ]
    found = np.array(corners, np.int32)
    found[:, 0] &= ~7  # the innermost coordinate is a multiple of 16 bytes
    return found


def _tma_load(rank: int, swizzle: int, offset: int = 0) -> Case:
    dims, strides, box = _tma_shape(rank, swizzle)
    corners = _corners(rank, dims, box)
    size = 2 * prod(box)
    coordinates = ", ".join(f"%{3 + i}" for i in range(rank))
    values = ", ".join(f'"r"(at[{i}])' for i in range(rank))
    body = (
        ALIGNED
        + f"""
    init_barrier(barrier, 1);
    if (t == 0) {{
        const int* at = corner + blockIdx.x * {rank};
        expect(barrier, {size});
        asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {{{coordinates}}}], [%2];"
                     :: "r"(smem + {offset}), "l"(&map), "r"(barrier), {values} : "memory");
    }}
    wait_parity(barrier, 0);
"""
        + COPY_OUT.format(words=size // 4, start=offset, offset=f"blockIdx.x * {size // 4} + ")
    )
    elements = (strides[-1] * dims[-1] if rank > 1 else 2 * dims[0]) // 2
    return Case(
        f"TMA load {rank}D, swizzle {swizzle}{f', {offset} bytes past the atom' if offset else ''}",
        f"cp.async.bulk.tensor.{rank}d, out-of-bounds fill",
        _kernel(body, "const u16* in, const int* corner, u32* out, const __grid_constant__ TensorMap map"),
        (_halves(elements, rank), corners.reshape(-1)), size * len(corners), grid=len(corners),
        smem_bytes=size + offset + 1024, maps=(Map(0, 2, dims, strides, box, swizzle),),
    )  # fmt: skip


def _tma_store(rank: int, swizzle: int, *, reduce: bool = False) -> Case:
    dims, strides, box = _tma_shape(rank, swizzle)
    corners = np.maximum(_corners(rank, dims, box)[:3], 0)
    if not reduce:
        corners = corners[2:]  # one box: stores of several blocks would race where they overlap
    size = 2 * prod(box)
    coordinates = ", ".join(f"%{2 + i}" for i in range(rank))
    values = ", ".join(f'"r"(at[{i}])' for i in range(rank))
    opcode = (
        f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.tile.bulk_group"
        if reduce
        else f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
    )
    body = (
        ALIGNED
        + f"""
    for (u32 i = t; i < {size // 2}; i += blockDim.x) ((u16*)tile)[i] = in[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (t == 0) {{
        const int* at = corner + blockIdx.x * {rank};
        asm volatile("{opcode} [%0, {{{coordinates}}}], [%1];" :: "l"(&map), "r"(smem), {values} : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }}"""
    )
    out_bytes = strides[-1] * dims[-1] if rank > 1 else (2 * dims[0] + 15) // 16 * 16
    source = _kernel(
        body, "const u16* in, const int* corner, u16* out, const __grid_constant__ TensorMap map"
    )
    inputs = _halves(size // 2, rank)
    if reduce:  # small integers as f16: their sums are exact in any order
        inputs = (inputs % 64).astype(np.float16).view(np.uint16)
    return Case(
        f"TMA {'reduce' if reduce else 'store'} {rank}D, swizzle {swizzle}", opcode, source,
        (inputs, corners.reshape(-1)), out_bytes, grid=len(corners), smem_bytes=size + 1024,
        maps=(Map(-1, 2, dims, strides, box, swizzle, is_bf16=False),),
    )  # fmt: skip


def _bulk_copy() -> Case:
    body = (
        ALIGNED
        + """
    init_barrier(barrier, 1);
    if (t == 0) {
        expect(barrier, 2048 + 64);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(smem), "l"(in), "r"(2048u), "r"(barrier) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(smem + 2048), "l"(in + 516), "r"(64u), "r"(barrier) : "memory");
    }
    wait_parity(barrier, 0);
    ((u32*)tile)[t] += 5;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (t == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                     :: "l"(out), "r"(smem), "r"(2112u) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }"""
    )
    words = np.random.default_rng(8).integers(0, 2**32, 600, dtype=np.uint32)
    return Case("bulk copy", "cp.async.bulk, both directions", _kernel(body, "const u32* in, u32* out"),
                (words,), 2112, smem_bytes=4096)  # fmt: skip


def _bulk_reduce() -> Case:
    body = (
        ALIGNED
        + """
    for (u32 i = t; i < 384; i += blockDim.x) ((u32*)tile)[i] = in[i] ;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (t == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                     :: "l"(out), "r"(smem), "r"(512u) : "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;"
                     :: "l"(out + 128), "r"(smem + 512), "r"(512u) : "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.max.s32 [%0], [%1], %2;"
                     :: "l"(out + 256), "r"(smem + 1024), "r"(512u) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }"""
    )
    rng = np.random.default_rng(9)
    words = rng.integers(0, 2**32, 384, dtype=np.uint32)
    words[:128] = rng.integers(-500, 500, 128).astype(np.float32).view(np.uint32)
    return Case("bulk reduction", "cp.reduce.async.bulk add.f32, add.u32, max.s32",
                _kernel(body, "const u32* in, u32* out"), (words,), 1536, grid=5,
                smem_bytes=4096)  # fmt: skip


def _multicast() -> Case:
    """Each block of a pair loads half of the tile into both; both wait for the whole."""
    body = (
        ALIGNED
        + """
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    init_barrier(barrier, 1);
    asm volatile("barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (t == 0) {
        expect(barrier, 4096);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                     " [%0], [%1, {%3, %4}], [%2], %5;"
                     :: "r"(smem + rank * 2048), "l"(&map), "r"(barrier), "r"(0),
                        "r"((int)(blockIdx.x * 16)), "h"((u16)3) : "memory");
    }
    wait_parity(barrier, 0);
"""
        + COPY_OUT.format(words=1024, start=0, offset="blockIdx.x * 1024 + ")
        + """
    asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");"""
    )
    source = _kernel(body, "const u16* in, u32* out, const __grid_constant__ TensorMap map",
                     extra="__cluster_dims__(2, 1, 1) ")  # fmt: skip
    return Case("TMA multicast", "cp.async.bulk.tensor .multicast::cluster, barrier.cluster", source,
                (_halves(64 * 80, 10),), 6 * 4096, grid=6, cluster=2, smem_bytes=5120,
                maps=(Map(0, 2, (64, 80), (128,), (64, 16), 128),))  # fmt: skip


def _remote_arrive() -> Case:
    """Each block's barrier takes one arrival of its own and one of its neighbour."""
    body = (
        ALIGNED
        + """
    u32 rank, remote, value;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    init_barrier(barrier, 2);
    asm volatile("barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (t == 0) {
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(smem), "r"(rank ^ 1));
        asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(remote), "r"(in[blockIdx.x]) : "memory");
        asm volatile("mbarrier.arrive.release.cluster.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(barrier), "r"(rank ^ 1));
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(remote) : "memory");
    }
    asm volatile("{\\n.reg .pred p;\\nW%=:\\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\\n"
                 "@p bra D%=;\\nbra W%=;\\nD%=:\\n}" :: "r"(barrier) : "memory");
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(smem));
    out[blockIdx.x * 128 + t] = value + rank;
    asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");"""
    )
    source = _kernel(body, "const u32* in, u32* out", extra="__cluster_dims__(2, 1, 1) ")
    words = np.random.default_rng(11).integers(0, 2**31, 4, dtype=np.uint32)
    return Case("cluster", "mapa, remote mbarrier.arrive, st.shared::cluster", source, (words,),
                4 * 512, grid=4, cluster=2, smem_bytes=2048)  # fmt: skip


def cases() -> list[Case]:
    return [
        _mbarrier(),
        *(_tma_load(rank, 0) for rank in (1, 2, 3, 4, 5)),
        *(_tma_load(rank, swizzle) for rank in (2, 4) for swizzle in (32, 64, 128)),
        _tma_load(2, 128, offset=384),
        _tma_load(2, 64, offset=128),
        *(_tma_store(rank, swizzle) for rank, swizzle in ((1, 0), (2, 128), (3, 64), (4, 32), (5, 0))),
        _tma_store(2, 128, reduce=True),
        _bulk_copy(),
        _bulk_reduce(),
        _multicast(),
        _remote_arrive(),
    ]  # fmt: skip
