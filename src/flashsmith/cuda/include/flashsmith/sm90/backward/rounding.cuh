// dQ: sums in float32, which lie as wgmma accumulators do, scaled and rounded into rows.
//
//   of each q tile pieces of 64 x 64:  d_head 64: two, by rows    128, 256: two, four, by columns
//   piece: thread t of 128 has 16 bytes at t / 32 * 4096 + r * 512 + t % 32 * 16, r = 0 .. 7
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/ptx/bulk.cuh"
#include "flashsmith/ptx/cache_policy.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/backward/parts.cuh"
#include "flashsmith/sm90/output.cuh"
#include "flashsmith/sm90/output_bounds.cuh"
#include "flashsmith/sm90/scratch_tiles.cuh"

namespace flashsmith::sm90 {

// What a warp takes of a piece: 16 rows.
template <DType kDType, int kDHead, Needs kNeeds>
struct DqRows {
    using Output =
        RowsOutput<kDType, kPanelColumns, 0, ptx::kEvictNormal, kNeeds.ragged_q, kNeeds.narrow_d>;
    static constexpr bool kByRows = kDHead == kPanelColumns;

    // Where number `piece` of all pieces has this lane's part.
    static FS_DEVICE u64 place(const Sm90BackwardArgs& args, u64 piece, int warp, int lane) {
        return reinterpret_cast<u64>(args.dq_sums) + piece * 16384 + warp * 4096 + lane * 16;
    }

    static FS_DEVICE void load(float (&dq)[32], u64 sums) {
        FS_UNROLL
        for (int r = 0; r < 8; ++r) {
            const Chunk held = ptx::ld_global_16b(sums + r * 512);
            FS_UNROLL
            for (int e = 0; e < 4; ++e) dq[4 * r + e] = __builtin_bit_cast(float, held.word[e]);
        }
    }

    static FS_DEVICE void clear(float (&dq)[32]) {
        FS_UNROLL
        for (int i = 0; i < 32; ++i) dq[i] = 0.0f;
    }

    // Rows of number `piece` of the q tile that begins with first_row, of q_len.
    static FS_DEVICE void store(const Sm90BackwardArgs& args, TensorArg out, i32 q_len,
                                i32 first_row, u32 piece, i32 head, i32 batch, int warp, int lane,
                                const float (&dq)[32]) {
        const i32 column = kByRows ? 0 : piece * kPanelColumns;
        out.address += column * kElementBytes;
        const QTile at{first_row + (kByRows ? static_cast<i32>(piece) * kWarpgroupRows : 0), 0,
                       head, batch};
        const float slope = Score<kNeeds>::slope(args);
        const float factors[2] = {slope, slope};
        Output::store_direct(out, OutputBounds{q_len, args.d_head - column}, at,
                             warp * 16 + lane / 4, lane, dq, factors);
    }
};

// With `rounds_dq`, warps that multiply round dQ too: at the end of each kv block q tiles whose
// sums are complete, and at the end of the launch those that are left. Each warp goes on by itself.
//
//   cta c of n:    q tiles c, c + n, c + 2 n, … of all heads, in which order heads are drawn too
//   at a kv block's end  as many as there are for each block on average, and one more
//   at the last    until all are rounded
//
// At a kv block's end nobody waits: what is not complete is looked at again behind the next. At the
// last all blocks have been drawn, by ctas that run and do not wait for this one.
template <class Kernel>
struct DqRounder {
    using Args = typename Kernel::Args;
    using Plan = typename Kernel::Plan;
    static constexpr auto kConfig = Kernel::kConfig;
    // q tiles that are on their way to registers at a time: a kv block's share, of equal lengths.
    static constexpr u32 kTogether = kConfig.keys() / kConfig.q_tile_rows();
    using Rows = DqRows<kConfig.dtype, kConfig.d_head, Kernel::kNeeds>;

    const Args& args;
    u32 thread = threadIdx.x - kWarpgroupThreads;  // of those that multiply

    // A warp's, before its first kv block.
    static FS_DEVICE void begin(const Args& args) {
        const DqRounder own{args};
        ptx::st_shared_b32(own.place(), 0);
        ptx::bar_warp_sync();  // all lanes will read it
    }

    static FS_DEVICE void at_end_of_block(const Args& args) { anew(args).round_some(); }

    static FS_DEVICE void at_last(const Args& args) {
        while (anew(args).round_some()) {
        }
    }

  private:
    // Nothing that follows from the thread is held in registers through all products.
    static FS_DEVICE DqRounder anew(const Args& args) {
        DqRounder own{args};
        asm volatile("" : "+r"(own.thread));
        return own;
    }

    FS_DEVICE u32 lane() const { return thread % kWarpLanes; }
    FS_DEVICE u32 warp() const { return thread / kWarpLanes % 4; }
    FS_DEVICE u32 warpgroup() const { return thread / kWarpgroupThreads; }

    // How many this warp has rounded: a register would be held, too.
    FS_DEVICE SmemAddr place() const { return Plan::rounded(thread / kWarpLanes); }

    // Blocks that add to a q tile.
    FS_DEVICE u32 sums_of(i32 tile) const {
        constexpr i32 kKeys = kConfig.keys(), kRows = kConfig.q_tile_rows();
        const i32 seen = Kernel::Mask::seen_before(args, (tile + 1) * kRows);
        const i32 before = Kernel::Mask::template blocks_before<kKeys>(args, tile * kRows);
        return max((seen + kKeys - 1) / kKeys - before, 0);
    }

    FS_DEVICE u32 first_of(u32 item) const { return item / args.q_tiles * args.q_tiles; }

    // Which q tile of all heads, as they lie in memory, number `item` is.
    FS_DEVICE u32 lying(u32 item) const {
        if constexpr (!kConfig.in_parts) return item;
        const u32 head = item / args.q_tiles, drawn = head / args.part_heads;
        const u32 lies = lying_at<Kernel>(args, drawn) * args.part_heads;
        return (lies + head - drawn * args.part_heads - head) * args.q_tiles + item;
    }

    // Returns whether there are more.
    FS_DEVICE bool round_some() const {
        const u32 ctas = ptx::nctaid_x();
        const u32 rounded = ptx::broadcast(ptx::ld_shared_b32(place()));
        const i32 heads = walked_heads<Kernel>(args);
        const u32 all = args.all_kv_blocks / args.kv_blocks * heads * args.q_tiles;
        const u32 share = min(heads * args.q_tiles / args.kv_blocks + 2, 31);
        const u32 next = ptx::ctaid_x() + rounded * ctas;
        // Lane i looks at the i-th from here.
        const u32 item = next + lane() * ctas;
        const bool exists = lane() < share && item < all;
        const u32 sums = exists ? sums_of(item - first_of(item)) : 0;
        const u32* const counter = args.counters + 1 + (exists ? lying(item) : 0) * 2 + warpgroup();
        const bool is_complete = exists && ptx::ld_acquire_gpu_if(sums > 0, counter) >= sums;
        const u32 complete = ptx::vote_ballot(is_complete);
        ptx::bar_warp_sync();  // what the lanes have seen is seen by all of them
        const u32 count = ptx::broadcast(__ffs(~complete) - 1);  // the last lane never says so
        _Pragma("unroll 1") for (u32 i = 0; i < count; i += kTogether) {
            float dq[kTogether][32];
            FS_UNROLL
            for (u32 n = 0; n < kTogether; ++n) load(dq[n], next + min(i + n, count - 1) * ctas);
            FS_UNROLL
            for (u32 n = 0; n < kTogether; ++n) {
                if (n == 0 || i + n < count) store(dq[n], next + (i + n) * ctas);
            }
        }
        ptx::st_shared_b32(place(), rounded + count);
        ptx::bar_warp_sync();  // all lanes will read it
        return next + count * ctas < all;
    }

    FS_DEVICE void load(float (&dq)[32], u32 item) const {
        const u64 piece = static_cast<u64>(lying(item)) * 2 + warpgroup();
        Rows::load(dq, Rows::place(args, piece, warp(), lane()));
        if constexpr (Kernel::Mask::kHides) {  // no kv block has added anything
            const bool is_seen = sums_of(item - first_of(item)) > 0;
            FS_UNROLL
            for (int i = 0; i < 32; ++i) dq[i] = is_seen ? dq[i] : 0.0f;
        }
    }

    FS_DEVICE void store(const float (&dq)[32], u32 number) const {
        const u32 item = lying(number);
        const u32 batch_head = item / args.q_tiles, batch = batch_head / args.heads;
        const i32 first_row = (item - batch_head * args.q_tiles) * kConfig.q_tile_rows();
        Rows::store(args, args.dq, args.q_len, first_row, warpgroup(),
                    static_cast<i32>(batch_head - batch * args.heads), static_cast<i32>(batch),
                    warp(), lane(), dq);
    }
};

}  // namespace flashsmith::sm90
