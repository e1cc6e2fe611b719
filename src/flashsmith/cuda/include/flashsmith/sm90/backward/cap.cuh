// Scores with a cap in the backward kernel on wgmma: c · tanh(y), y = x / c, of products x.
//
// The slope of a capped score over its product, 1 - tanh², is another for each. dV needs P and dS
// needs P times the slope: P is packed as soon as it is known, and the product takes its place.
//
// Where tanh is near 1 it has no digits left of its slope. What is kept of a product is what tanh
// lacks, with the sign turned, so that -inf, which masks write, stays -inf in the exponent:
//
//   r = 2 / (1 + e^(2 |y|)),   |tanh(y)| = 1 - r,   1 - tanh(y)² = r (2 - r)
#pragma once

#include "flashsmith/attention/score.cuh"
#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/math.cuh"

namespace flashsmith::sm90 {

// From products to r with the sign of -y, in place; what masks hide is made -inf behind it.
template <class Kernel, int kCount>
FS_DEVICE void to_remainders(const typename Kernel::Args& args, float (&s)[kCount]) {
    const float rate = Kernel::Score::tanh_rate(args);
    FS_UNROLL
    for (int i = 0; i < kCount; ++i) {
        const float twice = s[i] * rate;  // 2 y, in units of log2; the power may be infinite
        const float r = ptx::rcp(ptx::fma_rn(0.5F, ptx::ex2(ptx::abs(twice)), 0.5F));
        s[i] = ptx::with_sign(r, -twice);
    }
}

// tanh(y), or -inf of what is hidden.
FS_DEVICE float tanh_of(float remainder) {
    const bool is_above = __builtin_bit_cast(i32, remainder) < 0;
    return is_above ? remainder + 1.0F : remainder - 1.0F;
}

// 1 - tanh(y)², and 0 of what is hidden.
FS_DEVICE float slope_of(float remainder) {
    const float r = ptx::abs(ptx::max(remainder, -2.0F));
    return r * (2.0F - r);
}

// From there to P, packed, and to P times the slope, in place. `lse(j)` loads the shifts of
// elements 8 j .. 8 j + 7 as shared memory has them; `nearest` and `slope` are of distances.
template <class Kernel, int kCount, class Lse>
FS_DEVICE void to_capped_weights(const typename Kernel::Args& args, float (&s)[kCount],
                                 u32 (&packed)[kCount / 2], Lse lse, [[maybe_unused]] float nearest,
                                 [[maybe_unused]] float slope) {
    const float cap = args.softcap * kLog2E;
    FS_UNROLL
    for (int j = 0; j < kCount / 8; ++j) {
        const Chunk shifts = lse(j);
        FS_UNROLL
        for (int pair = 0; pair < 4; ++pair) {
            float p[2];
            FS_UNROLL
            for (int e = 0; e < 2; ++e) {
                const int i = 2 * pair + e;
                float& x = s[8 * j + i];
                float shift = __builtin_bit_cast(float, shifts.word[i / 4 * 2 + e]);
                if constexpr (Kernel::kNeeds.alibi) {
                    shift =
                        ptx::fma_rn(slope, Kernel::Score::distance_at(nearest, 8 * j + i), shift);
                }
                p[e] = ptx::ex2(ptx::fma_rn(tanh_of(x), cap, -shift));
                x = p[e] * slope_of(x);
            }
            packed[4 * j + pair] = ptx::pack2<Kernel::kConfig.dtype>(p[0], p[1]);
        }
    }
}

}  // namespace flashsmith::sm90
