// The two warpgroups that multiply for d_head 129 to 256: a kv block has 64 keys, and each
// warpgroup a role, since dK and dV of 64 keys take 128 registers of a warpgroup each.
//
//   step i    of P (warpgroup 0)      of dS (warpgroup 1)     beside them
//             dQ(i - 1), 2nd piece    the same                the 1st piece is counted
//             dV(i)                   dK(i)                   dS(i) is published
//             S(i + 1)                dP(i + 1)               the 2nd piece leaves
//             dQ(i), 1st piece        the same                P(i + 1), then dS(i + 1) from it
//
// P goes over in float32: thread t of one warpgroup writes what thread t of the other reads. dQ is
// four pieces of 64 x 64, two a warpgroup. They leave from registers, since shared memory is full.
//
// In order, a warp adds its 16 rows of a piece when the kv blocks before have added theirs: it
// counts every sum of its own (release) and waits for the count of others (acquire). The producer
// draws blocks in the order of the sums, so that who waits, waits for a block that runs.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/bulk.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/stmatrix.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/ptx/wgmma/m64n256.cuh"
#include "flashsmith/sm90/backward/cap.cuh"
#include "flashsmith/sm90/backward/part_sums.cuh"
#include "flashsmith/sm90/backward/products.cuh"
#include "flashsmith/sm90/backward/tile.cuh"
#include "flashsmith/sm90/backward/without_dq.cuh"
#include "flashsmith/sm90/output.cuh"
#include "flashsmith/sm90/output_bounds.cuh"

namespace flashsmith::sm90 {

// kMakesPArg: S, P and dV are this warpgroup's; else dP, dS and dK.
template <class Kernel, bool kMakesPArg>
struct WideConsumer {
    static constexpr bool kMakesP = kMakesPArg;
    static constexpr Sm90TilesConfig kConfig = Kernel::kConfig;
    static constexpr Needs kNeeds = Kernel::kNeeds;
    static constexpr int kWarpgroup = kMakesP ? 0 : 1;
    static constexpr int kRows = kConfig.q_tile_rows();
    static constexpr int kKeys = kConfig.keys();
    static constexpr bool kOrdered = !kConfig.in_any_order();
    static_assert(kRows == 64 && kKeys == 64, "a piece of dQ is 64 rows, dS one panel of 64 keys.");
    static_assert(!kConfig.fold, "statistics are loaded.");
    using Plan = typename Kernel::Plan;
    using Args = typename Kernel::Args;
    using Mask = typename Kernel::Mask;
    using Walk = sm90::Walk<Kernel>;
    using Products = BackwardProducts<kConfig.dtype, kConfig.d_head, kKeys, kRows, false>;
    using Scores = typename Products::Scores;
    using Piece = typename Products::Piece;
    using Output = RowsOutput<kConfig.dtype, kConfig.d_head, 0, ptx::kEvictNormal, kNeeds.ragged_k,
                              kNeeds.narrow_d>;

    const Args& args;
    const int lane, warp;
    const bool is_first_lane;

    u32 steps = 0;           // made in all: stage and parity of Q, dO and dS, parity of P
    u32 nth = 0;             // kv blocks before this one: slot, and parity of K and V
    i32 first_key = 0;       // of the kv block
    i32 q_tile = 0;          // of the step's scores
    bool adds = true;        // whether what this block multiplies belongs to any dQ
    bool has_dq = false;     // whether there was a step before this one in the block
    i32 dq_tile = 0;         // q tile of the next dQ that leaves,
    u32 dq_index = 0;        // and its number among those of all heads
    u32* counter = nullptr;  // in order: of the piece that leaves next, or has left last;
    bool uncounted = false;  // whether it has left and nobody was told
    u32 before = 0;          // kv blocks that add to it before this one
    bool rising = false;     // whether those are the ones in front of it
    i32 batch_head = 0;      // with distances: the head of the step's scores,
    float slope = 0.0f;      // and what a key further takes off the exponent

    typename Products::Gradient gradient;  // dV or dK
    typename Products::Operand operand;    // P or dS, packed

    FS_DEVICE explicit WideConsumer(const Args& args)
        : args(args),
          lane(threadIdx.x % kWarpLanes),
          warp(ptx::broadcast(threadIdx.x / kWarpLanes % 4)),
          is_first_lane(lane == 0) {}

    FS_DEVICE void run() {
        for (;; ++nth) {
            const u32 slot = nth % Plan::kBlockSlots;
            ptx::mbarrier_wait(Plan::block_full(slot), nth / Plan::kBlockSlots % 2);
            const KvBlock block = KvBlock::get(Plan::kv_block(slot));
            i32 left = ptx::broadcast(block.steps);
            if (left == 0) break;
            first_key = ptx::broadcast(block.first_key);
            begin(ptx::broadcast(block.batch * args.heads +
                                 block.kv_head * walked_heads<Kernel>(args)));
            if constexpr (kConfig.two_passes) {
                _Pragma("unroll 1") while (--left > 0)
                    StepWithoutDq<WideConsumer>::template make<false>(*this);
                StepWithoutDq<WideConsumer>::template make<true>(*this);
            } else {
                _Pragma("unroll 1") while (--left > 0) step<false>();
                step<true>();
            }
        }
    }

  private:
    friend struct StepWithoutDq<WideConsumer>;
    FS_DEVICE int stage() const { return steps & 1; }
    FS_DEVICE u32 parity() const { return steps >> 1 & 1; }
    FS_DEVICE void arrive(SmemAddr barrier) const {
        ptx::mbarrier_arrive_if(is_first_lane, barrier);
    }

    // Products

    // S or dP of the step.
    FS_DEVICE void issue_scores(Scores& to) const {
        // Q with its statistics, or dO, have landed.
        ptx::mbarrier_wait(kMakesP ? Plan::q_full(stage()) : Plan::d_o_full(stage()), parity());
        Products::issue_scores(to, Products::by_rows({kMakesP ? Plan::kK : Plan::kV}),
                               Products::by_rows(kMakesP ? Plan::q(stage()) : Plan::d_o(stage())),
                               {0}, {0});
        ptx::wgmma_commit();
    }

    // dV += Pᵀ dO or dK += dSᵀ Q.
    FS_DEVICE void issue_gradient() {
        if constexpr (kMakesP) ptx::mbarrier_wait(Plan::d_o_full(stage()), parity());  // has landed
        ptx::fence_registers(gradient);
        ptx::wgmma_fence();
        Products::issue_gradient(
            gradient, operand, Products::down_rows(kMakesP ? Plan::d_o(stage()) : Plan::q(stage())),
            0);
        ptx::wgmma_commit();
    }

    // Columns of dQ: panels of K. `ds` is a tile of dS.
    FS_DEVICE void issue_dq(Piece& to, u32 ds, int part) const {
        constexpr u32 kPanelBytes = kKeys * kPanelRowBytes;
        const u32 k_panel = Plan::kK + (2 * kWarpgroup + part) * kPanelBytes;
        ptx::wgmma_fence();
        Products::issue_dq(to, Products::by_rows({ds}), Products::by_rows({k_panel}));
        ptx::wgmma_commit();
    }

    static FS_DEVICE u32 ds_tile(int stage) { return Plan::kDs + stage * kConfig.ds_bytes(); }

    // From products to P and dS

    FS_DEVICE i32 key() const { return first_key + warp * 16 + lane / 4; }

    template <class Sequence>
    FS_DEVICE void hide(Scores& s, const Sequence& of) const {
        const i32 column = q_tile * kRows + lane % 4 * 2;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const i32 of_half = key() + 8 * half;
            i32 first = Mask::first_row_of(of, of_half);
            if (kNeeds.ragged_k && of_half >= of.k_len) first = 1 << 30;  // no row sees it
            hide_columns_before(s, half, first - column);
            if constexpr (kNeeds.window_left) {
                hide_columns_of_row<0, kRows / 2>(s, half,
                                                  Mask::last_row_of(of, of_half) + 1 - column);
            }
        }
    }

    // Whether some row of the q tile does not see some key.
    template <class Sequence>
    FS_DEVICE bool hides(const Sequence& of) const {
        const i32 row = q_tile * kRows;
        return Mask::template hides_before<kRows>(of, first_key + kKeys, row, 0) ||
               Mask::template hides_after<kRows>(of, first_key, row, 0);
    }

    // Two statistics of each of two column groups: of columns 16 j + 2 (lane % 4) + {0, 1, 8, 9}.
    FS_DEVICE Chunk load_statistics(int j, u32 offset) const {
        return ptx::ld_shared_16b(Plan::statistics(stage()) + (offset + j * 64 + lane % 4 * 16));
    }
    static FS_DEVICE float statistic(const Chunk& of_groups, int i) {
        return __builtin_bit_cast(float, of_groups.word[i / 4 * 2 + i % 2]);
    }

    // Where this thread's part of P goes over.
    FS_DEVICE SmemAddr p_address() const { return {Plan::kP + warp * 4096 + lane * 16}; }

    FS_DEVICE void to_weights(Scores& s, [[maybe_unused]] float nearest) const {
        const float factor = Kernel::Score::product_factor(args);
        FS_UNROLL
        for (int j = 0; j < kRows / 16; ++j) {
            const Chunk lse = load_statistics(j, 0);
            FS_UNROLL
            for (int i = 0; i < 8; ++i) {
                float& x = s[8 * j + i];
                float shift = statistic(lse, i);
                if constexpr (kNeeds.alibi) {
                    const float distance = Kernel::Score::distance_at(nearest, 8 * j + i);
                    shift = ptx::fma_rn(slope, distance, shift);
                }
                x = ptx::ex2(ptx::fma_rn(x, factor, -shift));
            }
        }
    }

    // P, to the other warpgroup and packed; with a cap, to the other times the slopes of scores.
    // kMayHide: with `masks_first`, of a block's first step.
    template <bool kMayHide>
    FS_DEVICE void make_p(Scores& s) {
        const auto& of = masked_sequence<Kernel>(args, nth);
        if constexpr (kNeeds.softcap) to_remainders<Kernel>(args, s);
        if constexpr (Mask::kHides && kMayHide) {
            if (hides(of)) hide(s, of);
        }
        [[maybe_unused]] const float nearest =
            static_cast<float>(key() - (q_tile * kRows + lane % 4 * 2 + of.position));
        if constexpr (kNeeds.softcap) {
            const auto lse = [&](int j) { return load_statistics(j, 0); };
            to_capped_weights<Kernel>(args, s, operand, lse, nearest, slope);
        } else {
            to_weights(s, nearest);
        }
        ptx::mbarrier_wait(Plan::p_empty(), ~steps & 1);  // P before has been read
        FS_UNROLL
        for (int r = 0; r < 8; ++r) {
            ptx::st_shared_f32x4(p_address() + r * 512, s[4 * r], s[4 * r + 1], s[4 * r + 2],
                                 s[4 * r + 3]);
        }
        ptx::bar_warp_sync();  // all lanes have written theirs
        arrive(Plan::p_full());
        FS_UNROLL
        for (int i = 0; !kNeeds.softcap && i < kRows / 4; ++i) {
            operand[i] = ptx::pack2<kConfig.dtype>(s[2 * i], s[2 * i + 1]);
        }
    }

    // dS from P and dP, packed, and to shared memory as a panel of [64 keys][64 rows].
    FS_DEVICE void make_ds(const Scores& dp) {
        const u32 row = warp * 16 + lane % 16;
        const u32 first = ds_tile(stage()) + row * kPanelRowBytes + ((lane / 16 ^ (row & 7)) << 4);
        ptx::mbarrier_wait(Plan::q_full(stage()), parity());  // statistics have landed
        ptx::mbarrier_wait(Plan::p_full(), steps & 1);        // P is there
        if constexpr (!kConfig.two_passes) {
            ptx::mbarrier_wait(Plan::ds_empty(stage()), parity() ^ 1);  // dQ from it is complete
        }
        FS_UNROLL
        for (int j = 0; j < kRows / 16; ++j) {
            const Chunk delta = load_statistics(j, kRows * 4);
            float p[2][4];
            ptx::ld_shared_f32x4(p[0], p_address() + j * 1024);
            ptx::ld_shared_f32x4(p[1], p_address() + (j * 1024 + 512));
            u32 chunk[4];
            FS_UNROLL
            for (int i = 0; i < 4; ++i) {
                float x[2];
                FS_UNROLL
                for (int e = 0; e < 2; ++e) {
                    const int at = 2 * i + e;
                    x[e] = p[at / 4][at % 4] * (dp[8 * j + at] - statistic(delta, at));
                }
                operand[4 * j + i] = chunk[i] = ptx::pack2<kConfig.dtype>(x[0], x[1]);
            }
            if constexpr (!kConfig.two_passes) ptx::stmatrix_x4({first ^ (j * 32)}, chunk);
        }
        ptx::bar_warp_sync();  // all lanes have read P
        arrive(Plan::p_empty());
    }

    // P or dS of the step, from S or dP.
    template <bool kMayHide>
    FS_DEVICE void make_operand(Scores& from) {
        if constexpr (kMakesP) {
            make_p<kMayHide>(from);
        } else {
            make_ds(from);
        }
    }

    // This warp's part of dS is there for both warpgroups.
    FS_DEVICE void publish_ds() const {
        ptx::fence_proxy_async();
        ptx::bar_warp_sync();
        arrive(Plan::ds_full(stage()));
    }

    // dQ

    // This warp's 16 rows of a piece, among those of all pieces.
    FS_DEVICE u32 rows_index(int part) const {
        return (dq_index * 4 + 2 * kWarpgroup + part) * 4 + warp;
    }

    // In order, who waits for the sum that was made last is told of it; then this warp waits until
    // its next one, of piece `part`, may be made. Products run meanwhile.
    FS_DEVICE void take_turn(int part) {
        if constexpr (kOrdered) {
            count_sum();
            constexpr i32 kBlock = kKeys;
            const i32 row_end = (dq_tile + 1) * kRows;
            const auto& of = masked_sequence<Kernel>(args, nth);
            const i32 blocks = (Mask::seen_before(of, row_end) + kBlock - 1) / kBlock;
            before = blocks - 1 - first_key / kBlock;
            if (kConfig.rising && rising) before = first_key / kBlock;
            counter = args.counters + 1 + rows_index(part);
            if (has_dq && before > 0) {
                ptx::wait_acquire_gpu(counter, before);
                ptx::bar_warp_sync();  // all sums before are complete, for every lane
            }
        }
    }

    FS_DEVICE void count_sum() {
        if constexpr (kOrdered) {
            ptx::bar_warp_sync();  // all lanes have added
            ptx::st_release_gpu_if(is_first_lane && uncounted, counter, before + 1);
            uncounted = false;
        }
    }

    // The first one stores, so that nothing need be cleared.
    FS_DEVICE void add_dq(const Piece& dq, int part) {
        const u64 to = reinterpret_cast<u64>(args.dq_sums) +
                       static_cast<u64>(rows_index(part)) * 4096 + lane * 16;
        const bool stores = kOrdered && has_dq && before == 0;
        FS_UNROLL
        for (int r = 0; r < 8; ++r) {
            const float* x = &dq[4 * r];
            if constexpr (kOrdered) {
                ptx::st_global_f32x4_if(to + r * 512, x[0], x[1], x[2], x[3], stores);
            }
            ptx::red_add_f32x4_if(has_dq && !stores, to + r * 512, x[0], x[1], x[2], x[3]);
        }
        uncounted = has_dq;
    }

    FS_DEVICE void advance_dq() {
        ++dq_index;
        if constexpr (!Walk::kCounts && !Kernel::kListed) ++dq_tile;
        if ((Walk::kCounts || Kernel::kListed) &&
            ++dq_tile == Walk::end_tile(args, first_key, nth)) {
            const i32 behind = args.q_tiles - dq_tile;
            dq_tile = Walk::first_tile(args, first_key, nth);
            dq_index += behind + dq_tile;
        }
    }

    FS_DEVICE void advance_q_tile() {
        if constexpr (!Walk::kCounts || !kMakesP) return;
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

    // Up to P or dS of the block's first q tile.
    FS_DEVICE void begin(i32 first_head) {
        FS_UNROLL
        for (int i = 0; i < kConfig.d_head / 2; ++i) gradient[i] = 0.0f;
        q_tile = dq_tile = Walk::first_tile(args, first_key, nth);
        dq_index = first_head * args.q_tiles + dq_tile + Walk::tiles_before(nth);
        if constexpr (kNeeds.alibi && kMakesP) take_head(first_head);
        if constexpr (kConfig.rising) {
            rising = rises<Kernel>(args, first_head / walked_heads<Kernel>(args));
        }
        adds = Walk::is_seen(args, first_key, nth);
        has_dq = false;
        Scores first;
        ptx::mbarrier_wait(kMakesP ? Plan::k_full() : Plan::v_full(), nth & 1);  // has landed
        issue_scores(first);
        ptx::wgmma_wait<0>();
        ptx::fence_registers(first);
        make_operand<true>(first);
        if constexpr (kConfig.early_release) StepWithoutDq<WideConsumer>::release_scores(*this);
        // K has landed: both multiply it to dQ.
        if constexpr (!kMakesP && !kConfig.two_passes) {
            ptx::mbarrier_wait(Plan::k_full(), nth & 1);
        }
    }

    // What P or dS of a q tile gives, dQ of the one before, and P or dS of the next.
    template <bool kLast>
    FS_DEVICE void step() {
        if constexpr (kLast) arrive(Plan::v_empty());
        const int now = stage(), last = now ^ 1;
        const u32 now_parity = parity();
        Piece second;
        // In a block's first step there is none: a product of K, which nobody writes, is dropped. A
        // branch around it would make ptxas wait for products one by one.
        issue_dq(second, has_dq ? ds_tile(last) : Plan::kK, 1);
        issue_gradient();
        if constexpr (!kMakesP) publish_ds();  // behind products, where the fence is free
        take_turn(1);
        ptx::wgmma_wait<1>();
        ptx::fence_registers(second);
        // dQ is complete.
        ptx::mbarrier_arrive_if(is_first_lane && has_dq, Plan::ds_empty(last));
        add_dq(second, 1);
        if (has_dq) advance_dq();
        has_dq = adds;
        ++steps;
        if constexpr (kLast) {
            end(now, now_parity);
        } else {
            prepare_next(now, now_parity);
        }
    }

    FS_DEVICE void prepare_next(int now, u32 now_parity) {
        Scores next;
        Piece first;
        advance_q_tile();
        issue_scores(next);
        ptx::mbarrier_wait(Plan::ds_full(now), now_parity);  // dS is there
        issue_dq(first, ds_tile(now), 0);
        take_turn(0);
        ptx::wgmma_wait<1>();  // dV or dK is complete: Q and dO have been read
        ptx::fence_registers(gradient);
        ptx::fence_registers(next);
        arrive(Plan::q_empty(now));
        arrive(Plan::d_o_empty(now));
        make_operand<!kConfig.masks_first>(next);
        ptx::wgmma_wait<0>();
        ptx::fence_registers(first);
        add_dq(first, 0);
    }

    // The block's last dQ, and its dV or dK beside it.
    FS_DEVICE void end(int now, u32 now_parity) {
        Piece first, second;
        ptx::mbarrier_wait(Plan::ds_full(now), now_parity);  // dS is there
        issue_dq(first, ds_tile(now), 0);
        issue_dq(second, ds_tile(now), 1);
        take_turn(0);
        ptx::wgmma_wait<2>();  // dV or dK is complete: Q and dO have been read
        ptx::fence_registers(gradient);
        arrive(Plan::q_empty(now));
        arrive(Plan::d_o_empty(now));
        ptx::wgmma_wait<0>();
        ptx::fence_registers(first);
        ptx::fence_registers(second);
        arrive(Plan::ds_empty(now));
        arrive(Plan::k_empty());
        add_dq(first, 0);
        take_turn(1);
        add_dq(second, 1);
        count_sum();
        store();
    }

    FS_DEVICE void store() {
        const PartialGradients<Kernel> part(args, Plan::kv_block(nth % Plan::kBlockSlots),
                                            kWarpgroup * 4 + warp, lane);
        part.add_before(gradient);
        if (!part.keep(gradient)) round();
        ptx::bar_warp_sync();  // all lanes have read the slot
        arrive(Plan::block_empty(nth % Plan::kBlockSlots));
        part.hand_on();
    }

    FS_DEVICE void round() const {
        const KvBlock block = KvBlock::get(Plan::kv_block(nth % Plan::kBlockSlots));
        const float by = kMakesP ? 1.0f : Kernel::Score::slope(args);
        const float factors[2] = {by, by};
        const QTile at{first_key, 0, kv_head_of<Kernel>(args, block.kv_head), block.batch};
        const auto& of = masked_sequence<Kernel>(args, nth);
        Output::store_direct(from_first_key(kMakesP ? args.dv : args.dk, of),
                             OutputBounds{of.k_len, args.d_head}, at, warp * 16 + lane / 4, lane,
                             gradient, factors);
    }
};

}  // namespace flashsmith::sm90
