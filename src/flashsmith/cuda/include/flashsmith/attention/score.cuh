// What becomes of a score between Q Kᵀ and the softmax, and of a row's sum behind it.
//
// Without a fact that changes scores nothing is done to them, and the softmax scale is folded into
// the exponent: P = 2^(scale_log2 · s - m). With one, `apply` makes the scaled score from the
// product, and the exponent only changes its base.
#pragma once

#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/math.cuh"

namespace flashsmith {

// What the exponents of a block of scores gain beside their products: nothing, or numbers that lie
// on a line along the keys of each of a thread's two rows. In units of log2.
struct NoLine {};
struct ScoreLine {
    float first[2];  // at the thread's first key
    float slope;     // a key further
    float factor;    // that products are multiplied with

    // Of element `i`, with `m` subtracted from all of its row.
    static FS_DEVICE float at(float slope, float less, int i) {
        return ptx::fma_rn(slope, static_cast<float>((i / 4) * 8 + (i & 1)), less);
    }
};

template <Needs kNeeds>
struct Score {
    static constexpr bool kChanges = kNeeds.changes_scores();
    static constexpr bool kHasDistances = kNeeds.alibi;
    static constexpr bool kHasBias = kNeeds.bias_bool || kNeeds.bias_same || kNeeds.bias_float32;
    static constexpr bool kAdds = kNeeds.alibi || kHasBias;  // to scores, whatever they are
    // Distances are all that changes scores: they can be left to the exponents.
    static constexpr bool kHasLines = kNeeds.alibi && !kNeeds.softcap && !kHasBias;

    float alibi_slope = 0.0F;  // of the head
    float rate = 0.0F;         // with a cap: see tanh_rate

    // Of one head of one sequence.
    template <class Args>
    static FS_DEVICE Score of_head(const Args& args, i32 batch, i32 head) {
        Score score;
        if constexpr (kNeeds.alibi)
            score.alibi_slope = args.alibi_slopes[batch * args.heads + head];
        if constexpr (kNeeds.softcap) score.rate = tanh_rate(args);
        return score;
    }

    // What a product is multiplied with in the exponent of tanh, where there is a cap.
    template <class Args>
    static FS_DEVICE float tanh_rate(const Args& args) {
        return 2.0F * args.scale_log2 * ptx::rcp(args.softcap);
    }

    // What a score is multiplied with in the exponent.
    template <class Args>
    static FS_DEVICE float factor(const Args& args) {
        return kChanges ? kLog2E : args.scale_log2;
    }

    // What a product is multiplied with in the exponent, where distances are subtracted there too.
    template <class Args>
    static FS_DEVICE float product_factor(const Args& args) {
        static_assert(!kBends, "a score that bends is computed before its exponent.");
        return args.scale_log2;
    }

    // Whether the slope of a score over its product is another for every score.
    static constexpr bool kBends = kNeeds.softcap;

    // The slope of a score over its product, as far as all have it: what gradients of products are
    // multiplied with.
    template <class Args>
    static FS_DEVICE float slope(const Args& args) {
        static_assert(!kChanges || kBends || kAdds, "scores that change have a slope each.");
        return args.scale_log2 * kLn2;
    }

    // And what a score has of its own: the slope of c · tanh(y), 1 - tanh(y)², from its product.
    // As 4 e^(2 y) / (1 + e^(2 y))²: where tanh is near 1 it has no digits left of its slope.
    FS_DEVICE float bend(float product) const {
        const float power = ptx::min(ptx::ex2(product * rate), 0x1p126F);  // times 0 it is 0
        const float share = ptx::rcp(1.0F + power);
        return power * share * (4.0F * share);
    }

    // From an element of Q Kᵀ to the score: a few lines a fact, as in problem/reference.py. What
    // depends on the places of row and key is added behind it.
    template <class Args>
    FS_DEVICE float of(const Args& args, float product) const {
        float x = product * (args.scale_log2 * kLn2);
        if constexpr (kNeeds.softcap) {
            // tanh(y) = 1 - 2 / (1 + e^(2 y)); the power may be 0 or infinite.
            const float power = ptx::ex2(product * rate);
            x = ptx::fma_rn(-2.0F * args.softcap, ptx::rcp(1.0F + power), args.softcap);
        }
        return x;
    }

    // What each loses for the distance between row and key: of rows and columns as mask.cuh draws
    // them, whichever of the two are keys. `distance`: of the first row and column.
    template <int kCount>
    FS_DEVICE void subtract_distances(float (&s)[kCount], i32 distance) const {
        const float nearest = static_cast<float>(distance);
        FS_UNROLL
        for (int i = 0; i < kCount; ++i) {
            s[i] = ptx::fma_rn(-alibi_slope, distance_at(nearest, i), s[i]);
        }
    }

    // Of element `i`, where the first one's is `nearest`.
    static FS_DEVICE float distance_at(float nearest, int i) {
        const float far = nearest + static_cast<float>(((i & 2) ? 8 : 0) - ((i / 4) * 8 + (i & 1)));
        return far < 0.0F ? -far : far;
    }

    // All of a thread's scores, before masks: of rows `row` and `row` + 8, and of the columns from
    // key `key` on that mask.cuh draws. They belong to a tile of kRows rows from `first_row` and
    // 2 kCount keys from `first_key` on, which all threads agree on. `position`: of row 0.
    template <int kRows, class Args, int kCount>
    FS_DEVICE void apply(const Args& args, [[maybe_unused]] i32 position, float (&s)[kCount],
                         [[maybe_unused]] i32 row, [[maybe_unused]] i32 key,
                         [[maybe_unused]] i32 first_row, [[maybe_unused]] i32 first_key) const {
        if constexpr (kNeeds.alibi) {
            const i32 nearest = first_row + position - (first_key + 2 * kCount - 1);
            const i32 furthest = first_row + kRows - 1 + position - first_key;
            const i32 distance = row + position - key;
            if (nearest >= 0 || furthest <= 0) {
                apply_line(args, s, distance, nearest >= 0 ? alibi_slope : -alibi_slope);
            } else {
                apply_bent(args, s, distance);
            }
        } else if constexpr (kChanges) {
            FS_UNROLL
            for (int i = 0; i < kCount; ++i) s[i] = of(args, s[i]);
        }
    }

    // The same where distances are left to the exponents. Where some keys lie on each side of a row
    // there is no line: scores are changed, to units of log2.
    template <int kRows, class Args, int kCount>
    FS_DEVICE ScoreLine line(const Args& args, i32 position, float (&s)[kCount], i32 row, i32 key,
                             i32 first_row, i32 first_key) const {
        static_assert(kHasLines, "other facts change scores one by one.");
        const i32 nearest = first_row + position - (first_key + 2 * kCount - 1);
        const i32 furthest = first_row + kRows - 1 + position - first_key;
        const float distance = static_cast<float>(row + position - key);
        const float slope = alibi_slope * kLog2E;
        if (nearest >= 0 || furthest <= 0) {
            const float along = nearest >= 0 ? slope : -slope;
            const float first = -along * distance;
            return {{first, ptx::fma_rn(along, -8.0F, first)}, along, args.scale_log2};
        }
        FS_UNROLL
        for (int i = 0; i < kCount; ++i) {
            s[i] = ptx::fma_rn(s[i], args.scale_log2, -slope * distance_at(distance, i));
        }
        return {{0.0F, 0.0F}, 0.0F, 1.0F};
    }

  private:
    // Where all keys lie on one side of all rows, distances are sums: two operations a score.
    template <class Args, int kCount>
    FS_DEVICE void apply_line(const Args& args, float (&s)[kCount], i32 distance,
                              float slope) const {
        const float first = -slope * static_cast<float>(distance);
        const float second = ptx::fma_rn(slope, -8.0F, first);
        FS_UNROLL
        for (int i = 0; i < kCount; ++i) {
            const float column = static_cast<float>((i / 4) * 8 + (i & 1));
            s[i] = of(args, s[i]) + ptx::fma_rn(slope, column, (i & 2) ? second : first);
        }
    }

    // Where some keys lie on each side of a row.
    template <class Args, int kCount>
    FS_DEVICE void apply_bent(const Args& args, float (&s)[kCount], i32 distance) const {
        const float nearest = static_cast<float>(distance);
        FS_UNROLL
        for (int i = 0; i < kCount; ++i) {
            s[i] = of(args, s[i]) - alibi_slope * distance_at(nearest, i);
        }
    }
};

// A sink is a logit that joins a row's sum and brings no value.

// The sum of a row with the sink: relative to `m`, as the sum is; infinite where the row is nothing
// beside it.
FS_DEVICE float sum_with_sink(float sum, float m, float sink_log2) {
    if (sink_log2 == kNegativeInfinity) return sum;  // also of a row that sees no key
    return sum + ptx::ex2(sink_log2 - (sum > 0.F ? m : kNegativeInfinity));
}

// log2 of the sum of a row's exponentials, with the sink.
FS_DEVICE float lse_with_sink(float sum, float m, float sink_log2) {
    const float own = sum > 0.F ? m : kNegativeInfinity;
    const float top = ptx::max(own, sink_log2);
    if (top == kNegativeInfinity) return sink_log2;  // which may be no number
    return top + ptx::lg2(sum * ptx::ex2(own - top) + ptx::ex2(sink_log2 - top));
}

}  // namespace flashsmith
