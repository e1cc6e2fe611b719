// dQ of wide heads by a launch of its own: a cta owns 128 query rows of one head, whose Q and dO
// stay in shared memory, and walks the kv blocks that they see. Each of two warpgroups owns 64 rows
// with their dQ in registers.
//
//   step j    products issued                 beside them
//             dQ += dS(j - 1) K(j - 1)
//             S(j) = Q K(j)ᵀ
//             dP(j) = dO V(j)ᵀ                P(j) from S(j)
//                                             dS(j) from P(j) and dP(j)
//
// S and dP are multiplied a second time, seven products for five; but nothing is added to memory,
// which for kv blocks of 64 keys takes longer than those two, and nobody waits for an order. With
// `turns` a warpgroup issues its products when dQ of the other is complete: while one computes dS,
// the other multiplies.
//
// There is room for one block of V. With `v_halves` its halves, by columns, are waited for and
// released one by one: the next block's first half is on its way while the second is multiplied.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/grid_dependency.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/special_register.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/ptx/wgmma/m64n256.cuh"
#include "flashsmith/sm90/backward/cap.cuh"
#include "flashsmith/sm90/backward/products.cuh"
#include "flashsmith/sm90/output.cuh"
#include "flashsmith/sm90/output_bounds.cuh"
#include "flashsmith/sm90/turns.cuh"

namespace flashsmith::sm90 {

// Q | dO | stages of K | V | barriers; matrices are panels, addresses are constants.
template <Sm90QueriesConfig kConfig>
struct QueriesPlan {
    static constexpr u32 kBase = 1024;
    static constexpr int kStages = kConfig.k_stages();
    static constexpr int kVParts = kConfig.v_parts();
    static constexpr u32 kQ = kBase;
    static constexpr u32 kDO = kQ + kConfig.q_bytes();
    static constexpr u32 kK = kDO + kConfig.q_bytes();
    static constexpr u32 kV = kK + kStages * kConfig.kv_bytes();
    static constexpr u32 kBarriers = kV + kConfig.kv_bytes();
    static_assert(kStages == 2, "a step's number is stage and parity.");
    static_assert(kBarriers + kConfig.barriers() * kBarrierBytes == kBase + kConfig.smem_bytes(),
                  "the plan and the configuration must agree on the size of shared memory.");

    static FS_DEVICE SmemAddr k(int stage) { return {kK + stage * kConfig.kv_bytes()}; }
    static FS_DEVICE SmemAddr q_full() { return barrier(0); }
    static FS_DEVICE SmemAddr d_o_full() { return barrier(1); }
    static FS_DEVICE SmemAddr v_full(int part) { return barrier(2 + part); }
    static FS_DEVICE SmemAddr v_empty(int part) { return barrier(2 + kVParts + part); }
    static FS_DEVICE SmemAddr k_full(int i) { return barrier(2 + 2 * kVParts + i); }
    static FS_DEVICE SmemAddr k_empty(int i) { return barrier(2 + 2 * kVParts + kStages + i); }

    // One thread; a barrier of the block must follow.
    static FS_DEVICE void init_barriers() {
        constexpr int kWarps = 8;  // that multiply: one lane of each arrives
        ptx::mbarrier_init(q_full(), 1);
        ptx::mbarrier_init(d_o_full(), 1);
        for (int part = 0; part < kVParts; ++part) {
            ptx::mbarrier_init(v_full(part), 1);
            ptx::mbarrier_init(v_empty(part), kWarps);
        }
        for (int i = 0; i < kStages; ++i) {
            ptx::mbarrier_init(k_full(i), 1);
            ptx::mbarrier_init(k_empty(i), kWarps);
        }
        ptx::fence_mbarrier_init();
    }

  private:
    static FS_DEVICE SmemAddr barrier(int index) { return {kBarriers + index * kBarrierBytes}; }
};

template <Sm90QueriesConfig kConfigArg, Needs kNeedsArg>
struct QueriesKernel {
    static constexpr Sm90QueriesConfig kConfig = kConfigArg;
    static constexpr Needs kNeeds = kNeedsArg;
    static constexpr int kRows = kConfig.rows();
    static constexpr int kKeys = kConfig.keys();
    using Args = Sm90BackwardArgs;
    using Plan = QueriesPlan<kConfig>;
    using Mask = flashsmith::Mask<kNeeds.causal, kNeeds.ragged_k, kNeeds.window_left>;
    using Score = flashsmith::Score<kNeeds>;
};

// What a cta owns. Under a mask the rows that see most keys come first of a head's.
template <class Kernel>
struct OwnedRows {
    i32 row, head, batch;  // the first row

    static FS_DEVICE OwnedRows of_cta(const typename Kernel::Args& args) {
        const i32 tiles = (args.q_len + Kernel::kRows - 1) / Kernel::kRows;
        const i32 batch_head = ptx::ctaid_x() / tiles;
        const i32 batch = batch_head / args.heads;
        const i32 tile = tiles - 1 - (static_cast<i32>(ptx::ctaid_x()) - batch_head * tiles);
        return {tile * Kernel::kRows, batch_head - batch * args.heads, batch};
    }

    // kv blocks that its first `rows` rows see: they begin with the same one, whatever `rows` is.
    FS_DEVICE Span span(const typename Kernel::Args& args, i32 rows) const {
        const i32 last = min(row + rows, args.q_len) - 1;
        return Kernel::Mask::template span<Kernel::kKeys>(args, row, last);
    }
};

// One thread: copies Q and dO, then K and V block after block.
template <class Kernel>
struct QueriesProducer {
    static constexpr Sm90QueriesConfig kConfig = Kernel::kConfig;
    using Plan = typename Kernel::Plan;

    const typename Kernel::Args& args;
    const OwnedRows<Kernel> own;

    FS_DEVICE void run() const {
        const Span span = own.span(args, Kernel::kRows);
        if (span.count <= 0) return;
        load_rows(args.q_map, Plan::kQ, Plan::q_full());
        load_k(0, span.first);
        load_rows(args.d_o_map, Plan::kDO, Plan::d_o_full());
        load_v(0, span.first);
        _Pragma("unroll 1") for (i32 step = 1; step < span.count; ++step) {
            load_k(step, span.first);
            load_v(step, span.first);
        }
    }

  private:
    // Maps have boxes of 64 rows.
    FS_DEVICE void load_rows(const TensorMap& map, u32 dst, SmemAddr full) const {
        constexpr u32 kHalfBytes = kWarpgroupRows * kPanelRowBytes;
        ptx::mbarrier_arrive_expect_tx(full, kConfig.q_bytes());
        FS_UNROLL
        for (int i = 0; i < 2 * kConfig.panels(); ++i) {
            ptx::tma_load_4d(
                {dst + i * kHalfBytes}, map,
                {i / 2 * kPanelColumns, own.row + i % 2 * kWarpgroupRows, own.head, own.batch},
                full);
        }
    }

    FS_DEVICE void load_k(i32 step, i32 first) const {
        const int stage = step & 1;
        ptx::mbarrier_wait(Plan::k_empty(stage), ~(step >> 1) & 1);  // the stage has been read
        load_panels<1>(args.k_map, Plan::k(stage), Plan::k_full(stage), first + step, 0);
    }

    FS_DEVICE void load_v(i32 step, i32 first) const {
        FS_UNROLL
        for (int part = 0; part < Plan::kVParts; ++part) {
            ptx::mbarrier_wait(Plan::v_empty(part), ~step & 1);  // of the block before, it was read
            load_panels<Plan::kVParts>(args.v_map, {Plan::kV}, Plan::v_full(part), first + step,
                                       part);
        }
    }

    // One of kParts parts, by columns, of a block.
    template <int kParts>
    FS_DEVICE void load_panels(const TensorMap& map, SmemAddr dst, SmemAddr full, i32 block,
                               int part) const {
        constexpr int kPanels = kConfig.panels() / kParts;
        ptx::mbarrier_arrive_expect_tx(full, kConfig.kv_bytes() / kParts);
        FS_UNROLL
        for (int panel = part * kPanels; panel < (part + 1) * kPanels; ++panel) {
            ptx::tma_load_4d(
                dst + panel * Kernel::kKeys * kPanelRowBytes, map,
                {panel * kPanelColumns, block * Kernel::kKeys, own.head / args.kv_group, own.batch},
                full);
        }
    }
};

// A warpgroup that multiplies.
template <class Kernel>
struct QueriesConsumer {
    static constexpr Sm90QueriesConfig kConfig = Kernel::kConfig;
    static constexpr Needs kNeeds = Kernel::kNeeds;
    static constexpr int kKeys = Kernel::kKeys;
    using Plan = typename Kernel::Plan;
    using Args = typename Kernel::Args;
    using Mask = typename Kernel::Mask;
    // Its rows are what the other launch's keys are to these products, and the reverse.
    using Products = BackwardProducts<kConfig.dtype, kConfig.d_head, Kernel::kRows, kKeys, false>;
    using Scores = typename Products::Scores;
    using Turns = WarpgroupTurns<kConfig.turns, 2>;
    using Output = RowsOutput<kConfig.dtype, kConfig.d_head, 0, ptx::kEvictNormal, kNeeds.ragged_q,
                              kNeeds.narrow_d>;

    const Args& args;
    const OwnedRows<Kernel> own;
    const int warpgroup, lane, warp;
    const bool is_first_lane;

    i32 step = 0;       // stage and parity of K, parity of V
    i32 first_key = 0;  // of the step's kv block
    float shift[2];     // of this thread's two rows, 8 apart: LSE in base 2,
    float delta[2];
    float slope = 0.0f;  // with distances: what a key further takes off the exponent
    typename Products::Gradient dq;
    typename Products::Operand ds;

    FS_DEVICE QueriesConsumer(const Args& args, const OwnedRows<Kernel>& own, int warpgroup)
        : args(args),
          own(own),
          warpgroup(warpgroup),
          lane(threadIdx.x % kWarpLanes),
          warp(ptx::broadcast(threadIdx.x / kWarpLanes % 4)),
          is_first_lane(lane == 0) {}

    FS_DEVICE void run() {
        FS_UNROLL
        for (int i = 0; i < kConfig.d_head / 2; ++i) dq[i] = 0.0f;
        Turns::open(warpgroup);
        // The first warpgroup leaves a last block out that only the second one sees. Its stages are
        // not filled again: nobody waits for them to be read.
        const Span span = own.span(args, (warpgroup + 1) * kWarpgroupRows);
        i32 left = ptx::broadcast(span.count);
        [[maybe_unused]] const bool leaves_out = left < own.span(args, Kernel::kRows).count;
        if (left > 0) {
            first_key = ptx::broadcast(span.first) * kKeys;
            load_statistics();
            if constexpr (kNeeds.alibi) {
                slope = args.alibi_slopes[own.batch * args.heads + own.head] * kLog2E;
            }
            begin();
            _Pragma("unroll 1") while (--left > 0) next();
            end();
        }
        if constexpr (kConfig.turns && kNeeds.causal) {
            if (leaves_out) {
                Turns::take(warpgroup);
                Turns::pass(warpgroup);
            }
        }
        store();
    }

  private:
    FS_DEVICE int stage() const { return step & 1; }
    FS_DEVICE void arrive(SmemAddr barrier) const {
        ptx::mbarrier_arrive_if(is_first_lane, barrier);
    }
    FS_DEVICE i32 first_row() const { return own.row + warpgroup * kWarpgroupRows; }
    FS_DEVICE i32 row_in_tile() const { return warp * 16 + lane / 4; }

    // As launch 1 wrote them: columns of 16 in the order in which the other launch reads them.
    FS_DEVICE void load_statistics() {
        constexpr int kTile = 64;
        const i32 batch_head = own.batch * args.heads + own.head;
        const float* const of_tile =
            args.statistics +
            static_cast<i64>(batch_head * args.q_tiles + first_row() / kTile) * (2 * kTile);
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const i32 at = warp * 16 + lane / 4 / 2 * 4 + half * 2 + lane / 4 % 2;
            shift[half] = -kNegativeInfinity;  // of a row that does not exist: P is 0
            delta[half] = 0.0f;
            if (!kNeeds.ragged_q || first_row() < args.q_len) {
                shift[half] = ptx::ld_global_f32(of_tile + at);
                delta[half] = ptx::ld_global_f32(of_tile + kTile + at);
            }
        }
    }

    FS_DEVICE ptx::MatrixDescriptor of_rows(u32 matrix) const {
        return Products::by_rows({matrix + warpgroup * kWarpgroupRows * kPanelRowBytes});
    }

    FS_DEVICE void issue_s(Scores& to) const {
        ptx::mbarrier_wait(Plan::k_full(stage()), step >> 1 & 1);  // K has landed
        Products::issue_scores(to, of_rows(Plan::kQ), Products::by_rows(Plan::k(stage())), {0},
                               {0});
        ptx::wgmma_commit();
    }

    // A group for each part of V.
    FS_DEVICE void issue_dp(Scores& to) const {
        constexpr int kSteps = kConfig.d_head / Products::kStep / Plan::kVParts;
        FS_UNROLL
        for (int part = 0; part < Plan::kVParts; ++part) {
            ptx::mbarrier_wait(Plan::v_full(part), step & 1);  // it has landed
            auto rows = of_rows(Plan::kDO);
            const auto keys = Products::by_rows({Plan::kV});
            asm volatile("" : "+r"(rows.low));  // made anew: kept, it would take registers
            ptx::wgmma_fence();
            FS_UNROLL
            for (int i = part * kSteps; i < (part + 1) * kSteps; ++i) {
                ptx::Wgmma<kConfig.dtype, kKeys>::template ss<0>(
                    to, (rows + Products::along_row(i, Kernel::kRows)).word(),
                    (keys + Products::along_row(i, kKeys)).word(), i > 0);
            }
            ptx::wgmma_commit();
        }
    }

    // dQ += dS K of stage `of`.
    FS_DEVICE void issue_dq(int of) {
        ptx::fence_registers(dq);
        ptx::wgmma_fence();
        Products::issue_gradient(dq, ds, Products::down_rows(Plan::k(of)), 0);
        ptx::wgmma_commit();
    }

    FS_DEVICE void hide(Scores& s) const {
        const i32 column = first_key + lane % 4 * 2;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const i32 row = first_row() + row_in_tile() + 8 * half;
            hide_columns_of_row<0, kKeys / 2>(s, half, Mask::seen_by(args, row) - column);
            if constexpr (kNeeds.window_left) {
                hide_columns_before(s, half, Mask::first_seen(args, row) - column);
            }
        }
    }

    // P; with a cap, times the slopes of scores, all that dS needs.
    FS_DEVICE void to_p(Scores& s) const {
        if constexpr (kNeeds.softcap) to_remainders<Kernel>(args, s);
        if constexpr (Mask::kHides) {
            constexpr int kHere = kWarpgroupRows;
            if (Mask::template hides_before<kHere>(args, first_key + kKeys, first_row(), 0) ||
                Mask::template hides_after<kHere>(args, first_key, first_row(), 0)) {
                hide(s);
            }
        }
        [[maybe_unused]] const float nearest = static_cast<float>(
            first_row() + row_in_tile() + args.position - first_key - lane % 4 * 2);
        const float factor = exponent_factor();
        FS_UNROLL
        for (int i = 0; i < kKeys / 2; ++i) {
            float less = shift[i / 2 % 2];
            if constexpr (kNeeds.alibi) {
                less = ptx::fma_rn(slope, Kernel::Score::distance_at(nearest, i), less);
            }
            if constexpr (kNeeds.softcap) {
                s[i] = ptx::ex2(ptx::fma_rn(tanh_of(s[i]), factor, -less)) * slope_of(s[i]);
            } else {
                s[i] = ptx::ex2(ptx::fma_rn(s[i], factor, -less));
            }
        }
    }

    // What a product, or with a cap tanh of it, is multiplied with in the exponent.
    FS_DEVICE float exponent_factor() const {
        if constexpr (kNeeds.softcap) {
            return args.softcap * kLog2E;
        } else {
            return Kernel::Score::product_factor(args);
        }
    }

    FS_DEVICE void to_ds(const Scores& p, const Scores& dp) {
        FS_UNROLL
        for (int i = 0; i < kKeys / 4; ++i) {
            const float of_row = delta[i % 2];
            ds[i] = ptx::pack2<kConfig.dtype>(p[2 * i] * (dp[2 * i] - of_row),
                                              p[2 * i + 1] * (dp[2 * i + 1] - of_row));
        }
    }

    // dS of the step from S, which is complete, and dP, which was issued last.
    FS_DEVICE void make_ds(Scores& s, Scores& dp) {
        ptx::fence_registers(s);
        to_p(s);
        if constexpr (Plan::kVParts == 2) {
            ptx::wgmma_wait<1>();  // the first part of V has been read
            arrive(Plan::v_empty(0));
        }
        ptx::wgmma_wait<0>();
        ptx::fence_registers(dp);
        arrive(Plan::v_empty(Plan::kVParts - 1));
        to_ds(s, dp);
    }

    FS_DEVICE void begin() {
        Scores s, dp;
        ptx::mbarrier_wait(Plan::q_full(), 0);  // Q has landed
        Turns::take(warpgroup);
        issue_s(s);
        ptx::mbarrier_wait(Plan::d_o_full(), 0);  // dO has landed
        issue_dp(dp);
        ptx::wgmma_wait<Plan::kVParts>();  // S is complete
        Turns::pass(warpgroup);
        make_ds(s, dp);
    }

    FS_DEVICE void next() {
        Scores s, dp;
        const int before = stage();
        Turns::take(warpgroup);
        issue_dq(before);
        ++step;
        first_key += kKeys;
        issue_s(s);
        issue_dp(dp);
        ptx::wgmma_wait<1 + Plan::kVParts>();  // dQ is complete: K before has been read
        ptx::fence_registers(dq);
        arrive(Plan::k_empty(before));
        Turns::pass(warpgroup);
        ptx::wgmma_wait<Plan::kVParts>();  // S is complete
        make_ds(s, dp);
    }

    FS_DEVICE void end() {
        issue_dq(stage());
        ptx::wgmma_wait<0>();
        ptx::fence_registers(dq);
    }

    FS_DEVICE void store() const {
        const float by = Kernel::Score::slope(args);
        const float factors[2] = {by, by};
        const QTile at{first_row(), 0, own.head, own.batch};
        Output::store_direct(args.dq, OutputBounds{args.q_len, args.d_head}, at, row_in_tile(),
                             lane, dq, factors);
    }
};

template <Sm90QueriesConfig kConfig, Needs kNeeds>
FS_DEVICE void backward_queries(const Sm90BackwardArgs& args) {
    using Kernel = QueriesKernel<kConfig, kNeeds>;
    using Plan = typename Kernel::Plan;
    constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;  // all that a block has
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const int warpgroup = ptx::broadcast(threadIdx.x / kWarpgroupThreads);
    if (threadIdx.x == 0) {
        if (static_cast<u32>(__cvta_generic_to_shared(shared_memory)) != Plan::kBase) __trap();
        Plan::init_barriers();
    }
    ptx::bar_sync();  // barriers are there
    const auto own = OwnedRows<Kernel>::of_cta(args);
    if (warpgroup == 0) {
        ptx::setmaxnreg_dec<kProducerRegisters>();
        if (threadIdx.x == 0) {
            QueriesProducer<Kernel>{args, own}.run();
            // Nothing here is of the launch before: what both read was there before that one let
            // this begin. Who comes behind waits for this launch alone, so this one waits for it.
            if constexpr (kConfig.early_start) ptx::wait_for_launch_before();
        }
    } else {
        ptx::setmaxnreg_inc<kConsumerRegisters>();
        QueriesConsumer<Kernel>(args, own, warpgroup - 1).run();
    }
}

}  // namespace flashsmith::sm90
