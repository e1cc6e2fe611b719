// A bias of the caller's: an element a score, added to it or, where it is a bool, hiding it.
//
// Elements lie at strides of the caller's, 0 where it broadcasts, and each thread reads those of
// its own scores. What is added may be -inf: any key may be hidden from any row. A row that has
// seen none is therefore kept at a finite maximum, kLeastMaximum, from which -inf is still far.
#pragma once

#include "flashsmith/base/dtype.cuh"
#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/convert.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/warp.cuh"

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
    // from key `key` on that mask.cuh draws. Rows and keys that do not exist get what others have.
    template <class Args, int kCount>
    FS_DEVICE void apply(const Args& args, float (&s)[kCount], i32 row, i32 key) const {
        if constexpr (!kExists) return;
        const u64 line[2] = {line_of(args, row), line_of(args, row + 8)};
        // A few at a time where every element has an address of its own: registers are short.
        constexpr int kPart = kNeeds.bias_keys_apart && kCount % 16 == 0 ? 16 : kCount;
        FS_UNROLL
        for (int from = 0; from < kCount; from += kPart) {
            Pair pairs[kPart / 2];
            if constexpr (kNeeds.bias_keys_apart) {
                // Never so, but a branch: ptxas would read all parts at once, and spill.
                u64 address = args.bias.address;
                asm volatile("" : "+l"(address));
                if (address == 0) continue;
                read_columns<kNeeds.ragged_k>(pairs, line, args.bias.key_stride, key + 2 * from,
                                              args.k_len);
            } else {
                read_pairs(args, pairs, line, key + 2 * from);
            }
            FS_UNROLL
            for (int i = 0; i < kPart; i += 2)
                apply_pair(s[from + i], s[from + i + 1], pairs[i / 2]);
        }
    }

    // The same where the tile is turned: of keys `key` and `key` + 8, and of the columns from query
    // row `row` on. What lies side by side is then a row's stride apart.
    template <class Args, int kCount>
    FS_DEVICE void apply_turned(const Args& args, float (&s)[kCount], i32 key, i32 row) const {
        const u64 line[2] = {column_of(args, key), column_of(args, key + 8)};
        constexpr int kPart = kCount % 16 == 0 ? 16 : kCount;  // as above
        FS_UNROLL
        for (int from = 0; from < kCount; from += kPart) {
            u64 address = args.bias.address;
            asm volatile("" : "+l"(address));
            if (address == 0) continue;
            Pair pairs[kPart / 2];
            read_columns<kNeeds.ragged_q>(pairs, line, args.bias.row_stride, row + 2 * from,
                                          args.q_len);
            FS_UNROLL
            for (int i = 0; i < kPart; i += 2)
                apply_pair(s[from + i], s[from + i + 1], pairs[i / 2]);
        }
    }

    // Which of a thread's scores a bool leaves: a bit each, read before there are scores.
    template <int kCount>
    struct Seen {
        u32 words[(kCount + 31) / 32];

        FS_DEVICE void apply(float (&s)[kCount]) const {
            FS_UNROLL
            for (int i = 0; i < kCount; ++i) {
                if ((words[i / 32] >> i % 32 & 1U) == 0) s[i] = kNegativeInfinity;
            }
        }
    };

    // Of rows and columns as `apply` takes them, or `apply_turned`; whether there are any.
    template <bool kTurned, class Args, int kCount>
    FS_DEVICE bool read_seen(const Args& args, Seen<kCount>& seen, i32 row, i32 column) const {
        static_assert(kIsBool, "what is added leaves all scores.");
        const u64 line[2] = {kTurned ? column_of(args, row) : line_of(args, row),
                             kTurned ? column_of(args, row + 8) : line_of(args, row + 8)};
        constexpr int kPart = kCount % 16 == 0 ? 16 : kCount;
        u32 any = 0;
        FS_UNROLL
        for (u32& word : seen.words) word = 0;
        FS_UNROLL
        for (int from = 0; from < kCount; from += kPart) {
            Pair pairs[kPart / 2];
            const i32 first = column + 2 * from;
            if constexpr (kTurned) {
                read_columns<kNeeds.ragged_q>(pairs, line, args.bias.row_stride, first, args.q_len);
            } else if constexpr (kNeeds.bias_keys_apart) {
                read_columns<kNeeds.ragged_k>(pairs, line, args.bias.key_stride, first, args.k_len);
            } else {
                read_pairs(args, pairs, line, first);
            }
            FS_UNROLL
            for (int i = 0; i < kPart; i += 2) {
                const u32 pair = pairs[i / 2];
                const u32 bits = ((pair & 0xffU) != 0 ? 1U : 0U) | (pair >= 0x100U ? 2U : 0U);
                seen.words[(from + i) / 32] |= bits << (from + i) % 32;
                any |= bits;
            }
        }
        return any != 0;
    }

    // The same in two steps, of which the first comes while the product runs. Elements of 32 bits
    // would take as many registers as the scores, and elements apart those of their addresses: they
    // are read in the second. So are bools: most blocks need none.
    static constexpr bool kIsEarly = kExists && !kIsWide && !kIsBool && !kNeeds.bias_keys_apart;
    template <int kCount>
    struct Early {
        u32 pairs[kIsEarly ? kCount / 2 : 1];
    };

    // A lane reads 8 keys of a row at once, a quad 32 side by side: a quarter of the requests that
    // pairs would take. Quads then exchange them, so that every lane has its own pairs.
    //
    //   keys of a row   | 0 … 7 | 8 … 15 | 16 … 23 | 24 … 31 |
    //   read by lane    |   0   |   1    |    2    |    3    |   of a quad
    //   pairs of lane   |0 1 2 3|0 1 2 3 | 0 1 2 3 | 0 1 2 3 |
    template <int kCount>
    static constexpr bool kInChunks = kNeeds.bias_keys_chunks && kCount % 16 == 0;

    template <class Args, int kCount>
    FS_DEVICE void read_early(const Args& args, Early<kCount>& early, i32 row, i32 key) const {
        if constexpr (kIsEarly) {
            const u64 line[2] = {line_of(args, row), line_of(args, row + 8)};
            if constexpr (kInChunks<kCount>) {
                read_chunks(args, early.pairs, line, key);
            } else {
                read_pairs(args, early.pairs, line, key);
            }
        }
    }

    template <class Args, int kCount>
    FS_DEVICE void apply_early(const Args& args, float (&s)[kCount], const Early<kCount>& early,
                               i32 row, i32 key) const {
        if constexpr (kInChunks<kCount>) {
            FS_UNROLL
            for (int chunk = 0; chunk < kCount / 8; ++chunk) {
                u32 pairs[4];
                FS_UNROLL
                for (int i = 0; i < 4; ++i) pairs[i] = early.pairs[4 * chunk + i];
                ptx::transpose_quad(pairs, threadIdx.x % kWarpLanes);
                FS_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const int at = chunk / 2 * 16 + i * 4 + chunk % 2 * 2;
                    apply_pair(s[at], s[at + 1], pairs[i]);
                }
            }
        } else if constexpr (kIsEarly) {
            FS_UNROLL
            for (int i = 0; i < kCount; i += 2) apply_pair(s[i], s[i + 1], early.pairs[i / 2]);
        } else {
            apply(args, s, row, key);
        }
    }

  private:
    // Two keys side by side, of one row.
    struct alignas(8) Wide {
        float first, second;
    };
    // One with a parameter more than it needs: a class may hold no full specialisation.
    template <bool kOfWide, class Unused = void>
    struct PairOf {
        using Type = u32;
    };
    template <class Unused>
    struct PairOf<true, Unused> {
        using Type = Wide;
    };
    using Pair = typename PairOf<kIsWide>::Type;

    // Two at once. Pairs that do not exist get what the last one has.
    template <class Args, int kCount>
    static FS_DEVICE void read_pairs(const Args& args, Pair (&pairs)[kCount], const u64 (&line)[2],
                                     i32 key) {
        FS_UNROLL
        for (int i = 0; i < kCount; ++i) {
            i32 column = key + i / 2 * 8;
            if constexpr (kNeeds.ragged_k) column = min(column, args.k_len - 2);
            const u64 at = line[i % 2] + static_cast<i64>(column) * kBytes;
            if constexpr (kIsBool) {
                pairs[i] = read<u16>(at);
            } else {
                pairs[i] = read<Pair>(at);
            }
        }
    }

    // Eight at once: chunk c is of row c % 2 and of the keys from 32 (c / 2) on. `key`: of the
    // lane's first pair. Chunks that do not exist get what the last one has.
    template <class Args, int kCount>
    static FS_DEVICE void read_chunks(const Args& args, u32 (&words)[kCount], const u64 (&line)[2],
                                      i32 key) {
        const i32 own = key + threadIdx.x % 4 * (kChunkElements - 2);
        FS_UNROLL
        for (int chunk = 0; chunk < kCount / 4; ++chunk) {
            i32 column = own + chunk / 2 * 32;
            if constexpr (kNeeds.ragged_k) column = min(column, args.k_len - kChunkElements);
            const Chunk found =
                ptx::ld_global_16b(line[chunk % 2] + static_cast<i64>(column) * kElementBytes);
            FS_UNROLL
            for (int i = 0; i < 4; ++i) words[4 * chunk + i] = found.word[i];
        }
    }

    // One after the other, at any stride, along two lines: of rows, or of keys where the tile is
    // turned. Those from `end` on, which do not exist, get what the first one has. What is of the
    // kernel's parameter is read where it is needed: that takes no register in between.
    template <bool kRagged, int kCount>
    static FS_DEVICE void read_columns(Pair (&pairs)[kCount], const u64 (&line)[2],
                                       const i64& stride, i32 from, const i32& end) {
        i64 step = stride * kBytes;
        // Opaque: the compiler would keep every key's offset in registers from block to block.
        asm volatile("" : "+l"(step));
        u64 at[2] = {line[0] + from * step, line[1] + from * step};
        FS_UNROLL
        for (int i = 0; i < kCount; ++i) {
            const int column = i / 2 * 8;
            const bool first_exists = !kRagged || from + column < end;
            const bool second_exists = !kRagged || from + column + 1 < end;
            const u64 first = first_exists ? at[i % 2] : line[i % 2];
            const u64 second = second_exists ? at[i % 2] + step : line[i % 2];
            if constexpr (kIsWide) {
                pairs[i] = {read<float>(first), read<float>(second)};
            } else if constexpr (kIsBool) {
                pairs[i] = read<unsigned char>(first) | read<unsigned char>(second) << 8;
            } else {
                pairs[i] = read<u16>(first) | static_cast<u32>(read<u16>(second)) << 16;
            }
            at[i % 2] += 8 * step;
        }
    }

    template <class Args>
    FS_DEVICE u64 line_of(const Args& args, i32 row) const {
        if constexpr (kNeeds.ragged_q) row = min(row, args.q_len - 1);
        return head_start + row * args.bias.row_stride * kBytes;
    }

    template <class Args>
    FS_DEVICE u64 column_of(const Args& args, i32 key) const {
        if constexpr (kNeeds.ragged_k) key = min(key, args.k_len - 1);
        return head_start + key * args.bias.key_stride * kBytes;
    }

    template <class T>
    static FS_DEVICE T read(u64 at) {
        return *static_cast<const T*>(__cvta_global_to_generic(at));
    }

    static FS_DEVICE void apply_pair(float& first, float& second, const Pair& pair) {
        if constexpr (kIsBool) {
            if ((pair & 0xffU) == 0) first = kNegativeInfinity;
            if (pair < 0x100U) second = kNegativeInfinity;
        } else if constexpr (kIsWide) {
            first += pair.first;
            second += pair.second;
        } else {
            float low, high;
            ptx::unpack2<kDType>(low, high, pair);
            first += low;
            second += high;
        }
    }
};

}  // namespace flashsmith
