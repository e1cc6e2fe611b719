// A step of wide heads that gives dV and dK alone, with `two_passes`: another launch multiplies dQ
// (queries.cuh).
//
//   step i    of P (warpgroup 0)      of dS (warpgroup 1)
//             dV(i)                   dK(i)
//             S(i + 1)                dP(i + 1)
//             P(i + 1)                dS(i + 1), from P
//
// P takes its way from one to the other in the meantime, which keeps them apart: while one
// computes, the other multiplies.
#pragma once

#include "flashsmith/ptx/wgmma.cuh"

namespace flashsmith::sm90 {

template <class Consumer>
struct StepWithoutDq {
    template <bool kLast>
    static FS_DEVICE void make(Consumer& c) {
        using Plan = typename Consumer::Plan;
        const int now = c.stage();
        if constexpr (kLast) {  // of scores, which read them
            c.arrive(Plan::k_empty());
            c.arrive(Plan::v_empty());
        }
        c.issue_gradient();
        ++c.steps;
        typename Consumer::Scores next;
        if constexpr (kLast) {
            ptx::wgmma_wait<0>();
        } else {
            c.advance_q_tile();
            c.issue_scores(next);
            ptx::wgmma_wait<1>();
        }
        ptx::fence_registers(c.gradient);
        // dV or dK is complete: what it was multiplied with has been read.
        constexpr bool kEarly = Consumer::kConfig.early_release;
        if constexpr (!kEarly || !Consumer::kMakesP) c.arrive(Plan::q_empty(now));
        if constexpr (!kEarly || Consumer::kMakesP) c.arrive(Plan::d_o_empty(now));
        if constexpr (kLast) {
            c.store();
        } else {
            ptx::wgmma_wait<0>();
            ptx::fence_registers(next);
            c.template make_operand<!Consumer::kConfig.masks_first>(next);
            if constexpr (kEarly) release_scores(c);
        }
    }

    // With `early_release`, of a step whose P or dS has been made: what S was multiplied with, and
    // its statistics, or what dP was. The other warpgroup alone keeps the stage from here on, until
    // its dK or dV is complete.
    static FS_DEVICE void release_scores(Consumer& c) {
        using Plan = typename Consumer::Plan;
        c.arrive(Consumer::kMakesP ? Plan::q_empty(c.stage()) : Plan::d_o_empty(c.stage()));
    }
};

}  // namespace flashsmith::sm90
