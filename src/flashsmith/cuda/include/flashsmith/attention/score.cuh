// What becomes of a score between Q Kᵀ and the softmax.
//
// Without a fact that changes scores nothing is done to them, and the softmax scale is folded into
// the exponent: P = 2^(scale_log2 · s - m). With one, `apply` makes the scaled score from the
// product, and the exponent only changes its base.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith {

template <Needs kNeeds>
struct Score {
    static constexpr bool kChanges = kNeeds.changes_scores();

    // What a score is multiplied with in the exponent.
    template <class Args>
    static FS_DEVICE float factor(const Args& args) {
        return kChanges ? kLog2E : args.scale_log2;
    }

    // The slope of a score over its product: what gradients of products are multiplied with.
    template <class Args>
    static FS_DEVICE float slope(const Args& args) {
        static_assert(!kChanges, "scores that change have a slope of their own each.");
        return args.scale_log2 * kLn2;
    }

    // From an element of Q Kᵀ to the score: one line a fact, as in problem/reference.py.
    template <class Args>
    static FS_DEVICE float of(const Args& args, float product) {
        float x = product * (args.scale_log2 * kLn2);
        return x;
    }

    // All of a thread's scores, before masks.
    template <class Args, int kCount>
    static FS_DEVICE void apply(const Args& args, float (&s)[kCount]) {
        if constexpr (kChanges) {
            FS_UNROLL
            for (int i = 0; i < kCount; ++i) s[i] = of(args, s[i]);
        }
    }
};

}  // namespace flashsmith
