// O = f16(c Q K^T) V, the skeleton of a Hopper forward kernel: a TMA producer, two
// consumer warpgroups, rings of two stages for K and V, stmatrix and a TMA store.
constexpr int kGroups = 2, kKeys = 64, kDim = 128, kStages = 2;
constexpr int kPanelBytes = 64 * 128;  // 64 rows of 64 columns
constexpr int kTileBytes = 2 * kPanelBytes;

// Byte offsets in shared memory: tiles first, then the barriers.
constexpr u32 kQ = 0, kK = kQ + kGroups * kTileBytes, kV = kK + kStages * kTileBytes,
              kFullQ = kV + kStages * kTileBytes, kFullK = kFullQ + 8,
              kFullV = kFullK + 8 * kStages, kEmptyK = kFullV + 8 * kStages,
              kEmptyV = kEmptyK + 8 * kStages;

FS_INLINE void load_tile(u32 dst, const TensorMap& map, u32 barrier, int row) {
    mbarrier_expect(barrier, kTileBytes);
    tma_load_2d(dst, map, barrier, 0, row);
    tma_load_2d(dst + kPanelBytes, map, barrier, 64, row);
}

extern "C" __global__ void __launch_bounds__(384, 1)
    attention_like(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                   const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o,
                   int key_blocks, float scale) {
    extern __shared__ char smem[];
    const u32 base = (smem_address(smem) + 1023) & ~1023u;
    const u32 sq = base + kQ, sk = base + kK, sv = base + kV, full_q = base + kFullQ,
              full_k = base + kFullK, full_v = base + kFullV, empty_k = base + kEmptyK,
              empty_v = base + kEmptyV;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = blockIdx.x * kGroups * 64;

    if (threadIdx.x == 0) {
        mbarrier_init(full_q, kGroups);
        for (int s = 0; s < kStages; ++s) {
            mbarrier_init(full_k + 8 * s, 1);
            mbarrier_init(full_v + 8 * s, 1);
            mbarrier_init(empty_k + 8 * s, 4 * kGroups);
            mbarrier_init(empty_v + 8 * s, 4 * kGroups);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (warp == 0 && elect_one()) {
            for (int g = 0; g < kGroups; ++g)
                load_tile(sq + g * kTileBytes, q, full_q, first_row + 64 * g);
#pragma unroll 1
            for (int j = 0; j < key_blocks; ++j) {
                const int s = j % kStages;
                const u32 parity = (j / kStages) & 1;
                mbarrier_wait(empty_k + 8 * s, parity ^ 1);
                load_tile(sk + s * kTileBytes, k, full_k + 8 * s, j * kKeys);
                mbarrier_wait(empty_v + 8 * s, parity ^ 1);
                load_tile(sv + s * kTileBytes, v, full_v + 8 * s, j * kKeys);
            }
        }
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int group = warp / 4 - 1;
    const u32 my_q = sq + group * kTileBytes;
    float out[64];
    mbarrier_wait(full_q, 0);
#pragma unroll 1
    for (int j = 0; j < key_blocks; ++j) {
        const int s = j % kStages;
        const u32 parity = (j / kStages) & 1;
        float scores[32];
        mbarrier_wait(full_k + 8 * s, parity);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kDim / 16; ++step) {
            const u32 at = step / 4 * kPanelBytes + step % 4 * 32;
            wgmma_ss_n64(scores, descriptor(my_q + at, 16, 1024),
                         descriptor(sk + s * kTileBytes + at, 16, 1024), step > 0);
        }
        wgmma_commit();
        wgmma_wait();
        pin(scores);
        if (lane == 0) mbarrier_arrive(empty_k + 8 * s);
        u32 p[16];
#pragma unroll
        for (int i = 0; i < 16; ++i)
            p[i] = pack_f16(scores[2 * i] * scale, scores[2 * i + 1] * scale);

        mbarrier_wait(full_v + 8 * s, parity);
        pin(out);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step)
            wgmma_rs_n128(out, p + 4 * step,
                          descriptor(sv + s * kTileBytes + step * 2048, kPanelBytes, 1024),
                          j > 0 || step > 0);
        wgmma_commit();
        wgmma_wait();
        pin(out);
        if (lane == 0) mbarrier_arrive(empty_v + 8 * s);
    }

    // Each warp has read only its own 16 rows of Q, so they may hold its rows of O.
    const u32 row = warp % 4 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const u32 chunk = (2 * i + lane / 16) % 8;
        stmatrix_x4(my_q + i / 4 * kPanelBytes + row * 128 + ((chunk ^ (row & 7)) * 16),
                    pack_f16(out[8 * i], out[8 * i + 1]), pack_f16(out[8 * i + 2], out[8 * i + 3]),
                    pack_f16(out[8 * i + 4], out[8 * i + 5]),
                    pack_f16(out[8 * i + 6], out[8 * i + 7]));
    }
    proxy_fence();
    named_barrier(1 + group, 128);
    if (warp % 4 == 0 && elect_one()) {
        tma_store_2d(o, my_q, 0, first_row + 64 * group);
        tma_store_2d(o, my_q + kPanelBytes, 64, first_row + 64 * group);
        bulk_commit();
        bulk_wait();
    }
}
