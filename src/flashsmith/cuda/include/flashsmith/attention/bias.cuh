// A bias of the caller's: an element a score, added to it or, where it is a bool, hiding it.
//
// Elements lie at strides of the caller's, 0 where it broadcasts, and each thread reads those of
// its own scores. What is added may be -inf: any key may be hidden from any row. A row that has
// seen none is therefore kept at a finite maximum, kLeastMaximum, from which -inf is still far.
#pragma once

#include "flashsmith/base/dtype.cuh"
#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/convert.cuh"

namespace flashsmith {

template <Needs kNeeds, DType kDType>
struct Bias {
    static constexpr bool kIsBool = kNeeds.bias_bool;
    static constexpr bool kIsWide = kNeeds.bias_float32;
    static constexpr bool kExists = kIsBool || kIsWide || kNeeds.bias_same;
    static constexpr int kBytes = kIsBool ? 1 : kIsWide ? 4 : kElementBytes;
    static constexpr float kLeastMaximum = -1e30F;  // in units of log2

    u64 head_start = 0;  // address of the head's first element

    // Of one head of one sequence.
    template <class Args>
    static FS_DEVICE Bias of_head(const Args& args, i32 batch, i32 head) {
        Bias bias;
        if constexpr (kExists) {
            const i64 offset = batch * args.bias.batch_stride + head * args.bias.head_stride;
            bias.head_start = args.bias.address + offset * kBytes;
        }
        return bias;
    }

    // To all of a thread's scores, before masks: of rows `row` and `row` + 8, and of the columns
    // from key `key` on that mask.cuh draws. All threads agree on `first_key`, the first of the
    // tile's 2 kCount keys. Rows that do not exist get what the last one has.
    template <class Args, int kCount>
    FS_DEVICE void apply(const Args& args, float (&s)[kCount], i32 row, i32 key,
                         i32 first_key) const {
        if constexpr (!kExists) return;
        const u64 line[2] = {line_of(args, row), line_of(args, row + 8)};
        const bool is_whole = !kNeeds.ragged_k || first_key + 2 * kCount <= args.k_len;
        if (args.bias.in_pairs != 0 && is_whole) {
            FS_UNROLL
            for (int i = 0; i < kCount; i += 2) {
                const u64 at = line[i / 2 % 2] + static_cast<i64>(key) * kBytes;
                apply_pair(s[i], s[i + 1], at + i / 4 * 8 * kBytes);
            }
        } else {
            apply_apart(args, s, line, key);
        }
    }

  private:
    // One after the other, at any stride. Keys that do not exist get what the first one has.
    template <class Args, int kCount>
    static FS_DEVICE void apply_apart(const Args& args, float (&s)[kCount], const u64 (&line)[2],
                                      i32 key) {
        i64 step = args.bias.key_stride * kBytes;
        // Opaque: the compiler would keep every key's offset in registers from block to block.
        asm volatile("" : "+l"(step));
        u64 at[2] = {line[0] + key * step, line[1] + key * step};
        FS_UNROLL
        for (int n = 0; n < kCount / 4; ++n) {
            FS_UNROLL
            for (int half = 0; half < 2; ++half) {
                FS_UNROLL
                for (int e = 0; e < 2; ++e) {
                    const bool exists = !kNeeds.ragged_k || key + n * 8 + e < args.k_len;
                    apply_one(s[4 * n + 2 * half + e],
                              exists ? at[half] + (e == 1 ? step : 0) : line[half]);
                }
                at[half] += 8 * step;
            }
        }
    }

    template <class Args>
    FS_DEVICE u64 line_of(const Args& args, i32 row) const {
        if constexpr (kNeeds.ragged_q) row = min(row, args.q_len - 1);
        return head_start + row * args.bias.row_stride * kBytes;
    }

    template <class T>
    static FS_DEVICE T read(u64 at) {
        return *reinterpret_cast<const T*>(at);
    }

    static FS_DEVICE void apply_pair(float& first, float& second, u64 at) {
        if constexpr (kIsBool) {
            const u32 seen = read<u16>(at);
            if ((seen & 0xffU) == 0) first = kNegativeInfinity;
            if (seen < 0x100U) second = kNegativeInfinity;
        } else if constexpr (kIsWide) {
            const u64 two = read<u64>(at);
            first += __builtin_bit_cast(float, static_cast<u32>(two));
            second += __builtin_bit_cast(float, static_cast<u32>(two >> 32));
        } else {
            float low, high;
            ptx::unpack2<kDType>(low, high, read<u32>(at));
            first += low;
            second += high;
        }
    }

    static FS_DEVICE void apply_one(float& score, u64 at) {
        if constexpr (kIsBool) {
            if (read<unsigned char>(at) == 0) score = kNegativeInfinity;
        } else if constexpr (kIsWide) {
            score += read<float>(at);
        } else {
            float low, high;
            ptx::unpack2<kDType>(low, high, read<u16>(at));
            score += low;
        }
    }
};

}  // namespace flashsmith
