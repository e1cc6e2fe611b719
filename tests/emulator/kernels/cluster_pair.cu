// Two blocks of a cluster share a ring of tiles: each loads half of every tile into both, and
// frees a stage in both. Each thread sums the words it reads, tile by tile.
constexpr int kStages = 2, kTileBytes = 2048, kHalfBytes = kTileBytes / 2, kHalfRows = 8;

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(160, 1)
    cluster_pair(const __grid_constant__ TensorMap map, u32* out, int tiles) {
    __shared__ alignas(128) u32 tile[kStages][kTileBytes / 4];
    __shared__ alignas(8) u64 full[kStages], empty[kStages];
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            mbarrier_init(smem_address(&full[s]), 1);
            mbarrier_init(smem_address(&empty[s]), 8);  // four warps of either block
        }
        mbarrier_init_fence();
    }
    cluster_sync();

    if (warp == 4) {
        if (lane == 0)
#pragma unroll 1
            for (int j = 0; j < tiles; ++j) {
                const int s = j % kStages;
                const u32 parity = (j / kStages) & 1;
                mbarrier_wait(smem_address(&empty[s]), parity ^ 1);
                mbarrier_expect(smem_address(&full[s]), kTileBytes);
                tma_load_2d_multicast(smem_address(tile[s]) + rank * kHalfBytes, map,
                                      smem_address(&full[s]), 0, (2 * j + rank) * kHalfRows, 3);
            }
    } else {
        u32 sum = 0;
#pragma unroll 1
        for (int j = 0; j < tiles; ++j) {
            const int s = j % kStages;
            mbarrier_wait(smem_address(&full[s]), (j / kStages) & 1);
            for (int i = 0; i < kTileBytes / 512; ++i)
                sum = sum * 3 + tile[s][i * 128 + threadIdx.x];
            __syncwarp();
            if (lane < 2) mbarrier_arrive_remote(smem_address(&empty[s]), lane);
        }
        out[blockIdx.x * 128 + threadIdx.x] = sum;
    }
    cluster_sync();  // no block ends while the other may still write into it
}
