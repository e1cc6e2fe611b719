// dQ, dK and dV in five products: a cta owns a kv block of one KV head, walks the q tiles of every
// head of its group, and adds what its keys give to dQ to float32 sums in memory.
//
//   owned, for the whole kernel:  K, V             walked, in one stage or two:  Q, dO, statistics
//   Sᵀ = K Qᵀ,  dPᵀ = V dOᵀ       Pᵀ = 2^(c Sᵀ + shift),  dSᵀ = Pᵀ ∘ (dPᵀ - delta)
//   dV += Pᵀ dO,  dK += dSᵀ Q     in registers, of the warp that owns the keys
//   dQ += dS K                    dS of all warps lies in shared memory as [keys][rows]
//
// With roles two warps have the same keys, twice as many: one makes P and dV, one dS and dK. Each
// operand that is read from shared memory is then multiplied with twice as many keys. dQ of the
// tile before comes where the other waits:
//
//   warp of P     S(i)        P(i)     dV(i)    dQ(i - 1)
//   warp of dS    dQ(i - 1)   dP(i)    dS(i)    dK(i)
//
// Sums into dQ have an order: kv blocks add to a q tile from the first that it sees to the last.
// Blocks are numbered by a counter, in that order, when they begin: a block waits for lower
// numbers alone, which run or have run, so that the lowest one that is not done can always go on.
#pragma once

#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/sm80/backward_sums/block_warp.cuh"

namespace flashsmith::sm80 {

// Number `index` of all kv blocks: the same block of the heads of a section, then the next block.
FS_DEVICE OwnedBlock drawn_block(const BackwardArgs& args, u32 index, u32 blocks) {
    const u32 heads = args.kv_heads * args.batch;
    const u32 section = index / (args.section_heads * blocks);
    const u32 rest = index - section * args.section_heads * blocks;
    const u32 first = section * args.section_heads;
    const u32 together = min(static_cast<u32>(args.section_heads), heads - first);
    const u32 block = rest / together;
    const u32 head = first + rest - block * together;
    return {head / args.kv_heads, head % args.kv_heads, block};
}

template <class Kernel, bool kMakesP, bool kMakesDs>
FS_DEVICE void run_block(const BackwardArgs& args, const OwnedBlock& own, SmemAddr smem) {
    BlockWarp<Kernel, kMakesP, kMakesDs> block(args, own, smem);
    block.walk();
    block.end();
}

template <Sm80BlocksConfig kConfig, Needs kNeeds>
FS_DEVICE void backward_blocks(const BackwardArgs& args) {
    using Kernel = BlocksKernel<kConfig, kNeeds>;
    static_assert(Kernel::valid());
    static_assert(!kConfig.roles || kConfig.step_rows() == kConfig.B_r,
                  "backward_blocks: warps with roles meet once a q tile, not once a step");
    static_assert(kConfig.dq_columns() <= kConfig.d_head,
                  "backward_blocks: a warp's part of dQ has 32 rows");
    extern __shared__ __align__(1024) unsigned char smem[];
    const SmemAddr start{static_cast<u32>(__cvta_generic_to_shared(smem))};
    u32 index = ptx::ctaid_x();
    if constexpr (!kConfig.unordered) {
        if (threadIdx.x == 0) {
            ptx::st_shared_b32(start + Kernel::kDs, ptx::atom_add_u32(args.counters, 1));
        }
        ptx::bar_sync();  // the number is there; dS is written behind the next barrier
        index = ptx::ld_shared_b32(start + Kernel::kDs);
    }
    const u32 blocks = (args.k_len + Kernel::kBc - 1) / Kernel::kBc;
    const OwnedBlock own = drawn_block(args, index, blocks);
    if constexpr (!kConfig.roles) {
        run_block<Kernel, true, true>(args, own, start);
    } else if (threadIdx.x < kConfig.owners() * kWarpLanes) {
        run_block<Kernel, true, false>(args, own, start);
    } else {
        run_block<Kernel, false, true>(args, own, start);
    }
}

}  // namespace flashsmith::sm80
