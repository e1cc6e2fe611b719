// A warpgroup that multiplies: it owns 64 keys of a kv block with their dK and dV in registers, and
// computes one piece of every dQ over all 128 keys.
//
//   step i    products issued         beside them
//             dV(i)                   dS(i) from P and dP, to registers and shared memory
//             dK(i), dQ(i - 1)        dS(i - 1) of the other warpgroup has long been there
//             S(i + 1)                dQ(i - 1) leaves
//             dP(i + 1)               P(i + 1)
//
// With `turns` a warpgroup issues dV to S as one run, then lets the other do so: both are half a
// step apart, and one multiplies while the other computes. No branch depends on the lane.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/bulk.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/stmatrix.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/sm90/backward/cap.cuh"
#include "flashsmith/sm90/backward/part_sums.cuh"
#include "flashsmith/sm90/backward/products.cuh"
#include "flashsmith/sm90/backward/rounding.cuh"
#include "flashsmith/sm90/backward/skip.cuh"
#include "flashsmith/sm90/backward/tile.cuh"
#include "flashsmith/sm90/output.cuh"
#include "flashsmith/sm90/output_bounds.cuh"
#include "flashsmith/sm90/turns.cuh"

namespace flashsmith::sm90 {

template <class Kernel>
struct BackwardConsumer {
    static constexpr Sm90TilesConfig kConfig = Kernel::kConfig;
    static constexpr Needs kNeeds = Kernel::kNeeds;
    static constexpr int kRows = kConfig.q_tile_rows();
    static constexpr int kKeys = kConfig.keys();
    static constexpr u32 kPanelBytes = kKeys * kPanelRowBytes;  // of K, and of dS
    static constexpr int kHalves = kRows / 64;  // of a q tile: P and dS are packed by halves
    static_assert(!Kernel::kListed || !kConfig.unordered, "packed sequences keep their bits.");
    using Plan = typename Kernel::Plan;
    using Args = typename Kernel::Args;
    using Mask = typename Kernel::Mask;
    using Turns = WarpgroupTurns<kConfig.turns, 2>;
    using Products = BackwardProducts<kConfig.dtype, kConfig.d_head, kKeys, kRows, kConfig.fold>;
    using Operand = typename Products::Operand;
    using Piece = typename Products::Piece;
    using Output = RowsOutput<kConfig.dtype, kConfig.d_head, 0, ptx::kEvictNormal, kNeeds.ragged_k,
                              kNeeds.narrow_d>;

    const Args& args;
    const int warpgroup, thread, lane, warp;
    const bool is_first_lane;
    const float factor;

    u32 steps = 0;     // before this one, of all kv blocks: stage and parity of Q and dO
    u32 nth = 0;       // kv blocks before this one: its slot, and the parity of K and V
    int ds_stage = 0;  // and of dS, whose ring may be longer
    u32 ds_parity = 0;
    u32 pieces = 0;       // of dQ, staged in all
    i32 first_key = 0;    // of the kv block
    i32 q_tile = 0;       // of the step's scores
    bool adds = true;     // whether the kv block adds to any dQ
    bool has_dq = false;  // whether the kv block had a step before this one
    i32 dq_tile = 0;      // q tile of the next dQ that leaves,
    u32 dq_index = 0;     // and its number among those of all heads,
    u32 dq_end = 0;       // of which a staggered walk goes on at its first head's from here
    i32 batch_head = 0;   // with distances: the head of the step's scores,
    float slope = 0.0f;   // and what a key further takes off the exponent

    typename Products::Gradient dk, dv;
    typename Products::Scores s, dp;
    Operand capped;  // with a cap: P of the step, packed

    FS_DEVICE BackwardConsumer(const Args& args, int warpgroup)
        : args(args),
          warpgroup(warpgroup),
          thread(threadIdx.x % kWarpgroupThreads),
          lane(threadIdx.x % kWarpLanes),
          warp(ptx::broadcast(threadIdx.x / kWarpLanes % 4)),
          is_first_lane(lane == 0),
          factor(args.scale_log2) {}

    FS_DEVICE void run() {
        Turns::open(warpgroup);
        if constexpr (kConfig.rounds_dq) DqRounder<Kernel>::begin(args);
        for (;; ++nth) {
            const u32 slot = nth % Plan::kBlockSlots;
            ptx::mbarrier_wait(Plan::block_full(slot), nth / Plan::kBlockSlots % 2);
            const KvBlock block = KvBlock::get(Plan::kv_block(slot));
            i32 left = ptx::broadcast(block.steps);
            if (left == 0) break;
            first_key = ptx::broadcast(block.first_key);
            left -= begin(ptx::broadcast(block.batch * args.heads +
                                         block.kv_head * walked_heads<Kernel>(args)),
                          left);
            _Pragma("unroll 1") while (--left > 0) step<false>();
            step<true>();
            if constexpr (kConfig.rounds_dq) DqRounder<Kernel>::at_end_of_block(args);
        }
        if constexpr (kConfig.rounds_dq) DqRounder<Kernel>::at_last(args);
        // Shared memory is there until the last sums have read it.
        if constexpr (kConfig.unordered && kConfig.stages_dq()) ptx::bulk_wait_if(is_first_lane);
    }

  private:
    friend struct HiddenStep<BackwardConsumer>;
    FS_DEVICE int stage() const { return steps & 1; }
    FS_DEVICE u32 parity() const { return steps >> 1 & 1; }
    FS_DEVICE void arrive(SmemAddr barrier) const {
        ptx::mbarrier_arrive_if(is_first_lane, barrier);
    }

    // Products

    FS_DEVICE void issue_s(typename Products::Scores& to) {
        ptx::mbarrier_wait(Plan::q_full(stage()), parity());  // Q and statistics have landed
        Products::issue_scores(to, of_keys(Plan::kK), Products::by_rows(Plan::q(stage())),
                               {Plan::kOnes}, Plan::statistics(stage()));
        ptx::wgmma_commit();
    }

    FS_DEVICE void issue_dp(typename Products::Scores& to) {
        ptx::mbarrier_wait(Plan::d_o_full(stage()), parity());  // dO has landed
        Products::issue_scores(to, of_keys(Plan::kV), Products::by_rows(Plan::d_o(stage())),
                               {Plan::kOnes}, Plan::statistics(stage()) + kRows * 16);
        ptx::wgmma_commit();
    }

    FS_DEVICE ptx::MatrixDescriptor of_keys(u32 matrix) const {
        return Products::by_rows({matrix + warpgroup * kWarpgroupRows * kPanelRowBytes});
    }

    // Columns (d_head 128) or rows (d_head 64) of dQ, by warpgroup. `ds` is a panel of a q tile's.
    FS_DEVICE void issue_dq(Piece& to, u32 ds) const {
        const u32 k_panel = kHalves == 2 ? 0 : warpgroup * kPanelBytes;
        Products::issue_dq(to, Products::by_rows({ds}), Products::by_rows({Plan::kK + k_panel}));
    }

    FS_DEVICE u32 ds_panel(int stage) const {
        return Plan::kDs + stage * kConfig.ds_bytes() +
               (kHalves == 2 ? warpgroup * kPanelBytes : 0);
    }

    FS_DEVICE void issue_dv(const Operand& p, int half) {
        ptx::fence_registers(dv);
        ptx::fence_registers(dk);
        ptx::wgmma_fence();
        Products::issue_gradient(dv, p, Products::down_rows(Plan::d_o(stage())), half);
    }

    FS_DEVICE void issue_dk(const Operand& ds, int half) {
        Products::issue_gradient(dk, ds, Products::down_rows(Plan::q(stage())), half);
    }

    // From products to P and dS

    template <class Sequence>
    FS_DEVICE void hide(const Sequence& of) {
        const i32 key = first_key + warpgroup * kWarpgroupRows + warp * 16 + lane / 4;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            i32 first = Mask::first_row_of(of, key + 8 * half);
            if (kNeeds.ragged_k && key + 8 * half >= of.k_len) first = 1 << 30;  // no row sees it
            hide_columns_before(s, half, first - q_tile * kRows - lane % 4 * 2);
            if constexpr (kNeeds.window_left) {
                const i32 end = Mask::last_row_of(of, key + 8 * half) + 1;
                hide_columns_of_row<0, kRows / 2>(s, half, end - q_tile * kRows - lane % 4 * 2);
            }
        }
    }

    // Between this thread's first key and where its first row of the q tile stands.
    template <class Sequence>
    FS_DEVICE i32 distance(const Sequence& of) const {
        const i32 key = first_key + warpgroup * kWarpgroupRows + warp * 16 + lane / 4;
        return key - (q_tile * kRows + lane % 4 * 2 + of.position);
    }

    // Whether some row of the q tile does not see some key of this warpgroup.
    template <class Sequence>
    FS_DEVICE bool hides(const Sequence& of) const {
        const i32 key_end = first_key + (warpgroup + 1) * kWarpgroupRows;
        const i32 row = q_tile * kRows;
        return Mask::template hides_before<kRows>(of, key_end, row, 0) ||
               Mask::template hides_after<kRows>(of, key_end - kWarpgroupRows, row, 0);
    }

    // Two statistics of each of two column groups: of columns 16 j + 2 (lane % 4) + {0, 1, 8, 9}.
    FS_DEVICE Chunk load_statistics(int j, u32 offset) const {
        return ptx::ld_shared_16b(Plan::statistics(stage()) + (offset + j * 64 + lane % 4 * 16));
    }

    // kMayHide: with `masks_first`, true only in the first step of a kv block.
    template <bool kMayHide>
    FS_DEVICE void to_p() {
        const auto& of = masked_sequence<Kernel>(args, nth);
        if constexpr (kNeeds.softcap) to_remainders<Kernel>(args, s);
        if constexpr (Mask::kHides && kMayHide) {
            if (hides(of)) hide(of);
        }
        [[maybe_unused]] const float nearest = static_cast<float>(distance(of));
        if constexpr (kNeeds.softcap) {
            const auto lse = [&](int j) { return load_statistics(j, 0); };
            to_capped_weights<Kernel>(args, s, capped, lse, nearest, slope);
        } else {
            to_weights(nearest);
        }
    }

    FS_DEVICE void to_weights([[maybe_unused]] float nearest) {
        FS_UNROLL
        for (int j = 0; j < kRows / 16; ++j) {
            Chunk lse{};
            if constexpr (!kConfig.fold) lse = load_statistics(j, 0);
            FS_UNROLL
            for (int i = 0; i < 8; ++i) {
                float& x = s[8 * j + i];
                if constexpr (kNeeds.alibi) {
                    // What a mask made -inf stays that.
                    x = ptx::fma_rn(x, factor,
                                    -slope * Kernel::Score::distance_at(nearest, 8 * j + i));
                    const u32 shift = lse.word[i / 4 * 2 + i % 2];
                    if constexpr (!kConfig.fold) x -= __builtin_bit_cast(float, shift);
                    x = ptx::ex2(x);
                } else if constexpr (kConfig.fold) {
                    x = ptx::ex2(x * factor);
                } else {
                    const u32 shift = lse.word[i / 4 * 2 + i % 2];
                    x = ptx::ex2(ptx::fma_rn(x, factor, -__builtin_bit_cast(float, shift)));
                }
            }
        }
    }

    FS_DEVICE void pack_p(Operand& p, int half) const {
        FS_UNROLL
        for (int i = 16 * half; i < 16 * (half + 1); ++i) {
            p[i] = kNeeds.softcap ? capped[i] : ptx::pack2<kConfig.dtype>(s[2 * i], s[2 * i + 1]);
        }
    }

    // Where this thread's part of 16 rows of dS goes, a row of a matrix.
    FS_DEVICE SmemAddr ds_address(int j) const {
        const u32 row = warp * 16 + lane % 16;
        const u32 first = Plan::kDs + (warpgroup * kWarpgroupRows + row) * kPanelRowBytes +
                          ((lane / 16 ^ (row & 7)) << 4) + ds_stage * kConfig.ds_bytes();
        return {(first ^ (j % 4 * 32)) + j / 4 * kKeys * kPanelRowBytes};
    }

    // dS of one half of the rows, packed, and to shared memory as [128 keys][64 rows] panels.
    FS_DEVICE void to_ds(Operand& ds, int half) const {
        FS_UNROLL
        for (int j = 4 * half; j < 4 * (half + 1); ++j) {
            Chunk delta{};
            if constexpr (!kConfig.fold) delta = load_statistics(j, kRows * 4);
            u32 chunk[4];
            FS_UNROLL
            for (int i = 0; i < 4; ++i) {
                float x[2];
                FS_UNROLL
                for (int e = 0; e < 2; ++e) {
                    const int at = 8 * j + 2 * i + e;
                    float slope = dp[at];
                    if constexpr (!kConfig.fold) {
                        slope -= __builtin_bit_cast(float, delta.word[i / 2 * 2 + e]);
                    }
                    x[e] = s[at] * slope;
                }
                chunk[i] = ptx::pack2<kConfig.dtype>(x[0], x[1]);
                ds[4 * j + i] = chunk[i];
            }
            ptx::stmatrix_x4(ds_address(j), chunk);
        }
    }

    // The tile of dS is this warp's part of what both warpgroups multiply to dQ.
    FS_DEVICE void publish_ds() const {
        ptx::fence_proxy_async();
        ptx::bar_warp_sync();
        arrive(Plan::ds_full(ds_stage));
    }

    // dQ

    FS_DEVICE u64 dq_address() const {
        return reinterpret_cast<u64>(args.dq_sums) +
               (static_cast<u64>(dq_index) * 2 + warpgroup) * kConfig.piece_bytes() + warp * 4096;
    }

    // From registers to where it leaves from.
    FS_DEVICE void put_dq(const Piece& dq) {
        if constexpr (kConfig.stages_dq()) {
            if constexpr (kConfig.unordered) {
                ptx::bulk_wait_read_if(is_first_lane);
            } else {
                ptx::mbarrier_wait(Plan::dq_empty(warpgroup), ~pieces & 1);
            }
            ptx::bar_warp_sync();  // the piece before has left
            const SmemAddr to = Plan::dq(warpgroup) + (warp * 4096 + lane * 16);
            FS_UNROLL
            for (int r = 0; r < 8; ++r) {
                ptx::st_shared_f32x4(to + r * 512, dq[4 * r], dq[4 * r + 1], dq[4 * r + 2],
                                     dq[4 * r + 3]);
            }
        } else {
            const u64 to = dq_address() + lane * 16;
            FS_UNROLL
            for (int r = 0; r < 8; ++r) {
                ptx::red_add_f32x4_if(has_dq, to + r * 512, dq[4 * r], dq[4 * r + 1], dq[4 * r + 2],
                                      dq[4 * r + 3]);
            }
        }
    }

    // What was put is on its way, unless there was nothing to put.
    FS_DEVICE void send_dq() {
        if constexpr (kConfig.stages_dq()) {
            ptx::fence_proxy_async();
            ptx::bar_warp_sync();  // all lanes have put theirs
            if constexpr (kConfig.unordered) {
                const bool sends = is_first_lane && has_dq;
                ptx::bulk_add_f32_if(sends, dq_address(), Plan::dq(warpgroup) + warp * 4096, 4096);
                ptx::bulk_commit_if(sends);
            } else {
                ptx::mbarrier_arrive_if(is_first_lane && has_dq, Plan::dq_full(warpgroup, pieces));
                pieces += has_dq;
            }
        }
        if constexpr (kConfig.unordered) {
            if (has_dq) advance_dq();
        }
        has_dq = adds;
    }

    FS_DEVICE void advance_dq() {
        using Walk = sm90::Walk<Kernel>;
        ++dq_index;
        if (Walk::kStaggered && dq_index == dq_end) {
            dq_index -= walked_heads<Kernel>(args) * args.q_tiles;
        }
        if (Walk::kCounts && ++dq_tile == Walk::end_tile(args, first_key)) {
            const i32 behind = args.q_tiles - dq_tile;
            dq_tile = Walk::first_tile(args, first_key);
            dq_index += behind + dq_tile;
        }
    }

    FS_DEVICE void advance_q_tile() {
        using Walk = sm90::Walk<Kernel>;
        if constexpr (!Walk::kCounts) return;
        if (++q_tile == Walk::end_tile(args, first_key, nth)) {
            q_tile = Walk::first_tile(args, first_key, nth);
            if constexpr (kNeeds.alibi) take_head(batch_head + 1);
        }
    }

    FS_DEVICE void take_head(i32 next) {
        batch_head = next;
        slope = args.alibi_slopes[first_slope<Kernel>(args, nth) + next] * kLog2E;
    }

    // Steps

    // Up to P and dP of the first q tile that is multiplied; returns how many were left out before.
    FS_DEVICE i32 begin(i32 first_head, i32 left) {
        FS_UNROLL
        for (int i = 0; i < kConfig.d_head / 2; ++i) dk[i] = dv[i] = 0.0f;
        q_tile = dq_tile = Walk<Kernel>::first_tile(args, first_key, nth);
        dq_index = first_head * args.q_tiles + dq_tile;
        if constexpr (Walk<Kernel>::kStaggered) {
            dq_end = dq_index + walked_heads<Kernel>(args) * args.q_tiles;
            dq_index += Walk<Kernel>::start_tile(args, first_key);
        }
        if constexpr (kNeeds.alibi) take_head(first_head);
        adds = Walk<Kernel>::is_seen(args, first_key, nth);
        has_dq = false;
        const i32 skipped = HiddenStep<BackwardConsumer>::skip(*this, left);
        // Fresh registers: what S and dP held before would stay alive through the products.
        typename Products::Scores first_s, first_dp;
        ptx::mbarrier_wait(Plan::k_full(), nth & 1);  // K has landed
        issue_s(first_s);
        ptx::mbarrier_wait(Plan::v_full(), nth & 1);  // V has landed
        issue_dp(first_dp);
        ptx::wgmma_wait<1>();
        take(s, first_s);
        to_p<true>();
        ptx::wgmma_wait<0>();
        take(dp, first_dp);
        return skipped;
    }

    static FS_DEVICE void take(typename Products::Scores& to, typename Products::Scores& from) {
        ptx::fence_registers(from);
        FS_UNROLL
        for (int i = 0; i < kRows / 2; ++i) to[i] = from[i];
    }

    // What P and dP of a q tile give, dQ of the one before, and P and dP of the next.
    template <bool kLast>
    FS_DEVICE void step() {
        if constexpr (kLast) arrive(Plan::v_empty());
        const int now = ds_stage;
        const u32 now_parity = ds_parity;
        const int before = now == 0 ? Plan::kDsStages - 1 : now - 1;
        const u32 before_parity = now == 0 ? now_parity ^ 1 : now_parity;

        add_to_gradients();
        Piece dq;
        ptx::mbarrier_wait(Plan::ds_full(before), before_parity);  // of both warpgroups
        ptx::wgmma_fence();
        // In the first step of a kv block there is none: K, which nobody writes, stands in for dS,
        // and the product is not stored. A branch would make ptxas wait for products one by one.
        issue_dq(dq, has_dq ? ds_panel(before) : Plan::kK);
        ptx::wgmma_commit();
        if constexpr (kConfig.late_fences) publish_ds();
        ptx::wgmma_wait<1>();  // dV and dK are complete: Q and dO have been read
        ptx::fence_registers(dv);
        ptx::fence_registers(dk);
        arrive(Plan::q_empty(stage()));
        arrive(Plan::d_o_empty(stage()));
        end_step();
        if constexpr (kLast) {
            end(dq, before, now, now_parity);
        } else {
            prepare_next(dq, before);
        }
    }

    FS_DEVICE void end_step() {
        ++steps;
        if (++ds_stage == Plan::kDsStages) {
            ds_stage = 0;
            ds_parity ^= 1;
        }
    }

    // dV and dK of this q tile are issued, and dS is on its way.
    FS_DEVICE void add_to_gradients() {
        Operand p, ds;
        FS_UNROLL
        for (int half = 0; half < kHalves; ++half) {
            if constexpr (kConfig.early_dv) {
                pack_p(p, half);
                if (half == 0) Turns::take(warpgroup);
                issue_dv(p, half);
                if (half > 0) issue_dk(ds, half - 1);
                ptx::wgmma_commit();
            }
            if (half == 0) {
                // The dQ that was multiplied from this stage is complete.
                ptx::mbarrier_wait(Plan::ds_empty(ds_stage), ds_parity ^ 1);
            }
            to_ds(ds, half);
            if constexpr (!kConfig.early_dv) pack_p(p, half);
        }
        if constexpr (!kConfig.late_fences) publish_ds();
        if constexpr (!kConfig.early_dv) {
            Turns::take(warpgroup);
            FS_UNROLL
            for (int half = 0; half < kHalves; ++half) issue_dv(p, half);
        }
        ptx::wgmma_fence();
        constexpr int kFirst = kConfig.early_dv ? kHalves - 1 : 0;
        FS_UNROLL
        for (int half = kFirst; half < kHalves; ++half) issue_dk(ds, half);
        ptx::wgmma_commit();
    }

    FS_DEVICE void prepare_next(Piece& dq, int before) {
        typename Products::Scores next_s, next_dp;
        advance_q_tile();
        issue_s(next_s);
        Turns::pass(warpgroup);
        ptx::wgmma_wait<1>();  // dQ is complete
        ptx::fence_registers(dq);
        ptx::mbarrier_arrive_if(is_first_lane && has_dq, Plan::ds_empty(before));
        put_dq(dq);
        if constexpr (!kConfig.late_fences) send_dq();
        issue_dp(next_dp);
        ptx::wgmma_wait<1>();  // S is complete
        take(s, next_s);
        to_p<!kConfig.masks_first>();
        if constexpr (kConfig.late_fences) send_dq();
        ptx::wgmma_wait<0>();
        take(dp, next_dp);
    }

    // The kv block's last two dQ, and its dV and dK beside them.
    FS_DEVICE void end(Piece& dq, int before, int now, u32 now_parity) {
        Turns::pass(warpgroup);
        ptx::wgmma_wait<0>();
        ptx::fence_registers(dq);
        ptx::mbarrier_arrive_if(is_first_lane && has_dq, Plan::ds_empty(before));
        put_dq(dq);
        send_dq();
        const PartialGradients<Kernel> part(args, Plan::kv_block(nth % Plan::kBlockSlots),
                                            warpgroup * 4 + warp, lane);
        part.add_before(dv, dk);
        if constexpr (!kConfig.in_parts) store(args.dv, dv, 1.0f);
        Piece last;
        ptx::mbarrier_wait(Plan::ds_full(now), now_parity);  // of both warpgroups
        ptx::wgmma_fence();
        issue_dq(last, ds_panel(now));
        ptx::wgmma_commit();
        if (!part.keep(dv, dk)) {
            if constexpr (kConfig.in_parts) store(args.dv, dv, 1.0f);
            store(args.dk, dk, Kernel::Score::slope(args));
        }
        release_block();
        ptx::wgmma_wait<0>();
        ptx::fence_registers(last);
        arrive(Plan::ds_empty(now));
        arrive(Plan::k_empty());
        put_dq(last);
        send_dq();
        part.hand_on();
    }

    FS_DEVICE void store(const TensorArg& out, const typename Products::Gradient& gradient,
                         float by) const {
        const KvBlock block = KvBlock::get(Plan::kv_block(nth % Plan::kBlockSlots));
        const float factors[2] = {by, by};
        const QTile at{first_key + warpgroup * kWarpgroupRows, 0,
                       kv_head_of<Kernel>(args, block.kv_head), block.batch};
        const auto& of = masked_sequence<Kernel>(args, nth);
        Output::store_direct(from_first_key(out, of), OutputBounds{of.k_len, args.d_head}, at,
                             warp * 16 + lane / 4, lane, gradient, factors);
    }

    FS_DEVICE void release_block() const {
        ptx::bar_warp_sync();  // all lanes have read the slot
        arrive(Plan::block_empty(nth % Plan::kBlockSlots));
    }
};

}  // namespace flashsmith::sm90
