// Scores with a cap in the backward kernel on wgmma: c · tanh(x / c) of products.
//
// The slope of a capped score over its product, 1 - tanh², is another for each. dV needs P and dS
// needs P times the slope: P is packed as soon as it is known, and the product takes its place.
#pragma once

#include "flashsmith/attention/score.cuh"
#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/math.cuh"

namespace flashsmith::sm90 {

// From products to tanh(x / c), in place; what masks hide is made -inf behind it.
template <class Kernel, int kCount>
FS_DEVICE void to_tanh(const typename Kernel::Args& args, float (&s)[kCount]) {
    const float rate = Kernel::Score::tanh_rate(args);
    FS_UNROLL
    for (int i = 0; i < kCount; ++i) {
        // tanh(y) = 1 - 2 / (1 + e^(2 y)); the power may be 0 or infinite.
        s[i] = ptx::fma_rn(-2.0F, ptx::rcp(1.0F + ptx::ex2(s[i] * rate)), 1.0F);
    }
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
                p[e] = ptx::ex2(ptx::fma_rn(x, cap, -shift));
                const float share = ptx::max(x, -1.0F);  // of what is hidden the slope is 0
                x = p[e] * ptx::fma_rn(-share, share, 1.0F);
            }
            packed[4 * j + pair] = ptx::pack2<Kernel::kConfig.dtype>(p[0], p[1]);
        }
    }
}

}  // namespace flashsmith::sm90
