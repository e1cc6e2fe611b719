// Online softmax of the two rows a thread shares with the three other lanes of its quad.
//
// m is the row maximum in units of log2, or a stale one: O and l are exact whatever m is, as long
// as they use the same. A block only has to see that no exponential becomes too large:
//   MAX   the row's maximum, by shuffles
//   VOTE  the maximum of a thread's part; only if a row outgrew m by 2^threshold does the warp
//         shuffle, and that row takes its new maximum and rescales O
//   BITS  as VOTE, but the patterns of the numbers are compared as integers: positive numbers keep
//         their order, and one instruction takes three of them. Where m is below -2^threshold's
//         exponent a negative maximum would matter, and the exact way is taken
//   SUM   no maximum: exponentials are positive, so a thread's sum bounds every one of them. If a
//         sum is above 2^threshold the block is done again with the row's maximum. A tile starts
//         with m = 0, and its first block is also done again if a sum is below 2^-threshold. Where
//         the sums are left to the tensor cores, the largest pattern of P takes their place
//
// The warp votes on whether the rare code runs; inside it a row that did not outgrow its own m
// keeps it, with the factor 1. What a row adds up therefore depends on no other row.
#pragma once

#include "flashsmith/attention/score.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/ptx/warpgroup.cuh"

namespace flashsmith::sm90 {

// Of kv blocks of kBc keys; 2^kGrowth is the threshold, 0 rescales in every block. kMmaSums: row
// sums are left to the tensor cores.
template <DType kDType, int kBc, Statistics kStatistics, int kGrowth, bool kMmaSums>
struct LazySoftmax {
    static constexpr float kThreshold = static_cast<float>(kGrowth);
    static constexpr float kMostSum = static_cast<float>(1 << kGrowth);
    static constexpr float kLeastSum = 1.f / kMostSum;
    // The same limits as patterns of the 16-bit types: their exponent above their mantissa.
    static constexpr int kMantissaBits = kDType == DType::kBF16 ? 7 : 10;
    static constexpr int kBias = kDType == DType::kBF16 ? 127 : 15;
    static constexpr i32 kMostPattern = (kBias + kGrowth) << kMantissaBits;
    static constexpr i32 kLeastPattern = (kBias - kGrowth) << kMantissaBits;
    static constexpr bool kLazy = kGrowth > 0;
    // Finite: exponentials of masked elements come out as 0 with no case of their own.
    static constexpr float kNoMaximum = -1e30f;

    using P = u32[kBc / 4];

    float m[2];           // row maximum times factor, log2
    float l[2];           // this thread's part of the row's sum
    float correction[2];  // factor that O still waits for
    bool grown;           // whether O has to be rescaled; the same in the whole warp

    FS_DEVICE void reset() {
        m[0] = m[1] = kStatistics == Statistics::kSUM ? 0.f : kNoMaximum;
        l[0] = l[1] = 0.f;
        correction[0] = correction[1] = 1.f;
        grown = false;
    }

    // Sees to it that m is near enough to this block's maximum; sets grown and correction.
    template <int kCount>
    FS_DEVICE void update_maximum(const float (&s)[kCount], float factor) {
        if constexpr (kStatistics == Statistics::kBITS) {
            grown = outgrew_bits(s, factor);
            if (!grown) return;
        }
        float low, high;
        over_thread(low, high, s);
        if constexpr (kStatistics == Statistics::kMAX) {
            over_quad(low, high);
            if constexpr (kLazy) {
                grown = outgrew(low, high, factor);
                if (!grown) return;
            }
            grown = true;
        } else {
            if constexpr (kStatistics != Statistics::kBITS) {
                grown = outgrew(low, high, factor);
                if (!grown) return;
            }
            over_quad(low, high);
        }
        const bool outgrown[2] = {!kLazy || ptx::fma_rn(low, factor, -m[0]) > kThreshold,
                                  !kLazy || ptx::fma_rn(high, factor, -m[1]) > kThreshold};
        take_maximum(outgrown, low, high, factor);
    }

    // s becomes 2^(s factor - m), and l its sum.
    template <int kCount>
    FS_DEVICE void exponentials(float (&s)[kCount], float factor) {
        FS_UNROLL
        for (int i = 0; i < kCount; i += 4) {
            FS_UNROLL
            for (int j = 0; j < 4; ++j) {
                s[i + j] = ptx::ex2(ptx::fma_rn(s[i + j], factor, j < 2 ? -m[0] : -m[1]));
            }
            l[0] += s[i] + s[i + 1];
            l[1] += s[i + 2] + s[i + 3];
        }
    }

    template <int kCount>
    static FS_DEVICE void pack(P& p, const float (&s)[kCount]) {
        FS_UNROLL
        for (int i = 0; i < kCount / 2; ++i) p[i] = ptx::pack2<kDType>(s[2 * i], s[2 * i + 1]);
    }

    // The whole step with SUM: s stays as it is, because a block may have to be done again. A
    // masked first block is not tried: lanes that see none of it have no sum. `line`: what scores
    // still gain.
    template <class Line, int kCount>
    FS_DEVICE void exponentials_checked(P& p, const float (&s)[kCount], const Line& line,
                                        float factor, bool first, bool masked) {
        float sum[2];
        bool outgrown[2] = {true, true};
        grown = first && masked;
        if (!grown) {
            packed_exponentials(p, sum, s, line, factor);
            if constexpr (kMmaSums) {
                patterns_outgrew(outgrown, p, first);
            } else {
                outgrown[0] = !fits(sum[0], first);
                outgrown[1] = !fits(sum[1], first);
            }
            grown = ptx::vote_any(outgrown[0] || outgrown[1]);
        }
        if (grown) {
            float low, high;
            over_thread(low, high, s, line);
            over_quad(low, high);
            FS_UNROLL
            for (int i = 0; i < 2; ++i) {
                outgrown[i] = ptx::any_of_quad(outgrown[i]);
                if (first && outgrown[i]) m[i] = kNoMaximum;
            }
            take_maximum(outgrown, low, high, factor);
            packed_exponentials(p, sum, s, line, factor);
        }
        if constexpr (!kMmaSums) {
            l[0] += sum[0];
            l[1] += sum[1];
        }
    }

    template <int kCount>
    FS_DEVICE void rescale(float (&o)[kCount]) const {
        if (kLazy && !grown) return;
        FS_UNROLL
        for (int i = 0; i < kCount; i += 4) {
            o[i] *= correction[0];
            o[i + 1] *= correction[0];
            o[i + 2] *= correction[1];
            o[i + 3] *= correction[1];
        }
    }

    // The rows' sums over the quad.
    FS_DEVICE void sum_quad(float (&sum)[2]) const {
        FS_UNROLL
        for (int i = 0; i < 2; ++i) {
            sum[i] = l[i];
            sum[i] += ptx::shfl_bfly(sum[i], 1);
            sum[i] += ptx::shfl_bfly(sum[i], 2);
        }
    }

  private:
    // A NaN does not fit: the block is done again and stays NaN.
    static FS_DEVICE bool fits(float sum, bool first) {
        return sum <= kMostSum && (!first || sum >= kLeastSum);
    }

    // Patterns of numbers that are not negative have the order of the numbers: a pair of them is
    // compared at once. Words 0 and 2 of four belong to the lower row, 1 and 3 to the upper.
    static FS_DEVICE void patterns_outgrew(bool (&outgrown)[2], const P& p, bool first) {
        FS_UNROLL
        for (int row = 0; row < 2; ++row) {
            u32 most = p[row];
            FS_UNROLL
            for (int i = 2; i < kBc / 4; i += 4) {
                most = ptx::max_s16x2(most, p[i + row]);
                if (i + 2 < kBc / 4) most = ptx::max_s16x2(most, p[i + 2 + row]);
            }
            const i32 largest =
                max(static_cast<i32>(most) >> 16, static_cast<i32>(most << 16) >> 16);
            outgrown[row] = largest > kMostPattern || (first && largest < kLeastPattern);
        }
    }

    template <int kCount>
    static FS_DEVICE void over_thread(float& low, float& high, const float (&s)[kCount]) {
        float a[4] = {s[0], s[1], s[2], s[3]};
        FS_UNROLL
        for (int i = 4; i < kCount; i += 4) {
            FS_UNROLL
            for (int j = 0; j < 4; ++j) a[j] = ptx::max(a[j], s[i + j]);
        }
        low = ptx::max(a[0], a[1]);
        high = ptx::max(a[2], a[3]);
    }

    template <int kCount>
    static FS_DEVICE void over_thread(float& low, float& high, const float (&s)[kCount],
                                      const NoLine&) {
        over_thread(low, high, s);
    }

    // Of scores with what they gain, in units of log2.
    template <int kCount>
    static FS_DEVICE void over_thread(float& low, float& high, const float (&s)[kCount],
                                      const ScoreLine& line) {
        float most[2] = {kNegativeInfinity, kNegativeInfinity};
        FS_UNROLL
        for (int i = 0; i < kCount; ++i) {
            const int row = (i & 2) / 2;
            const float gain = ScoreLine::at(line.slope, line.first[row], i);
            most[row] = ptx::max(most[row], ptx::fma_rn(s[i], line.factor, gain));
        }
        low = most[0];
        high = most[1];
    }

    // Whether any row outgrew m. Among negative numbers the patterns' order is reversed, so `most`
    // is too low where a row has no positive score; with m >= -threshold such a row has not grown.
    template <int kCount>
    FS_DEVICE bool outgrew_bits(const float (&s)[kCount], float factor) const {
        i32 most[2] = {ptx::bits(s[0]), ptx::bits(s[2])};
        most[0] = max(most[0], ptx::bits(s[1]));
        most[1] = max(most[1], ptx::bits(s[3]));
        FS_UNROLL
        for (int i = 4; i < kCount; i += 4) {
            FS_UNROLL
            for (int j = 0; j < 2; ++j) {
                most[j] = max(max(most[j], ptx::bits(s[i + 2 * j])), ptx::bits(s[i + 2 * j + 1]));
            }
        }
        bool any = false;
        FS_UNROLL
        for (int j = 0; j < 2; ++j) {
            any |= ptx::fma_rn(ptx::number(most[j]), factor, -m[j]) > kThreshold;
            any |= m[j] < -kThreshold;
        }
        return ptx::vote_any(any);
    }

    static FS_DEVICE void over_quad(float& low, float& high) {
        low = ptx::max(low, ptx::shfl_bfly(low, 1));
        high = ptx::max(high, ptx::shfl_bfly(high, 1));
        low = ptx::max(low, ptx::shfl_bfly(low, 2));
        high = ptx::max(high, ptx::shfl_bfly(high, 2));
    }

    FS_DEVICE bool outgrew(float low, float high, float factor) const {
        return ptx::vote_any(ptx::fma_rn(low, factor, -m[0]) > kThreshold ||
                             ptx::fma_rn(high, factor, -m[1]) > kThreshold);
    }

    // Rows that outgrew m go on with the block's maximum.
    FS_DEVICE void take_maximum(const bool (&outgrown)[2], float low, float high, float factor) {
        const float most[2] = {ptx::mul_rn(low, factor), ptx::mul_rn(high, factor)};
        FS_UNROLL
        for (int i = 0; i < 2; ++i) {
            const float next = outgrown[i] ? ptx::max(most[i], m[i]) : m[i];
            correction[i] = ptx::ex2(m[i] - next);
            m[i] = next;
            l[i] *= correction[i];
        }
    }

    // Of element `i`: 2 to the power of it is P.
    FS_DEVICE float exponent(float s, const NoLine&, float factor, int i) const {
        return ptx::fma_rn(s, factor, i & 2 ? -m[1] : -m[0]);
    }
    FS_DEVICE float exponent(float s, const ScoreLine& line, float, int i) const {
        const float first = i & 2 ? line.first[1] - m[1] : line.first[0] - m[0];
        return ptx::fma_rn(s, line.factor, ScoreLine::at(line.slope, first, i));
    }

    template <class Line, int kCount>
    FS_DEVICE void packed_exponentials(P& p, float (&sum)[2], const float (&s)[kCount],
                                       const Line& line, float factor) const {
        sum[0] = sum[1] = 0.f;
        FS_UNROLL
        for (int i = 0; i < kCount; i += 4) {
            float e[4];
            FS_UNROLL
            for (int j = 0; j < 4; ++j) {
                e[j] = ptx::ex2(exponent(s[i + j], line, factor, i + j));
            }
            if constexpr (!kMmaSums) {
                sum[0] += e[0] + e[1];
                sum[1] += e[2] + e[3];
            }
            p[i / 2] = ptx::pack2<kDType>(e[0], e[1]);
            p[i / 2 + 1] = ptx::pack2<kDType>(e[2], e[3]);
        }
    }
};

}  // namespace flashsmith::sm90
