// The sums of decode/output.cuh in another way: the largest maximum is found first, and then every
// result is added with one weight. Weights do not wait for each other, and a sum is one instruction
// long; parts of a row lie slice by slice, so that all of them are read from one address.
#pragma once

#include "flashsmith/decode/output.cuh"

namespace flashsmith::decode {

template <class Kernel>
class WeighedOutput : public DecodeOutput<Kernel> {
    using Base = DecodeOutput<Kernel>;
    using Base::args_, Base::work_, Base::smem_, Base::rows_;
    using Base::kPieces, Base::kColumns, Base::kAhead, Base::kD, Base::kNeeds;

  public:
    using Base::Base;

    // Adds up what the teams handed over: O where this is the only slice, else a part of it.
    FS_DEVICE void add_teams() const {
        _Pragma("unroll 1") for (u32 i = threadIdx.x; i < rows_ * kPieces; i += Kernel::kThreads) {
            const u32 row = i / kPieces;
            const u32 piece = i % kPieces;
            Parts<Kernel::kTeams> parts;
            FS_UNROLL
            for (int team = 0; team < Kernel::kTeams; ++team) {
                this->take(parts.o[team], parts.maximum[team], parts.sum[team], team, row, piece);
            }
            RowPart total;
            total.maximum = parts.largest(kNegativeInfinity);
            parts.add_to(total);
            if (work_.slices == 1) {
                this->store(total, row, piece);
            } else {
                const i64 at = part_at(work_.slice, row);
                this->store_part(args_.parts + at * kD + piece * kColumns, total.o);
                if (piece == 0) {
                    ptx::st_global_f32x2(args_.statistics + 2 * at, total.maximum, total.sum);
                }
            }
        }
    }

    // The last cta to come adds up all slices, from the first on, whoever computed them.
    FS_DEVICE void add_slices(u32 count = 1) const {
        if (work_.slices == 1 || !this->comes_last(count)) return;
        if (work_.slices <= kAhead / 2 && rows_ * kPieces > Kernel::kThreads) {
            add_pieces<2>();
        } else {
            add_pieces<1>();
        }
        this->drop_parts(*this);
    }

    // Where a row of a slice's part lies in scratch memory.
    FS_DEVICE i64 part_at(i32 slice, u32 row) const { return first_part(row) + slice; }

  private:
    // Four columns of one row of several results.
    template <int kCount>
    struct Parts {
        float o[kCount][4], maximum[kCount], sum[kCount];

        FS_DEVICE float largest(float top) const {
            FS_UNROLL
            for (int i = 0; i < kCount; ++i) top = ptx::max(top, maximum[i]);
            return top;
        }

        // Adds them up in order; the total's maximum is at least the largest of all.
        FS_DEVICE void add_to(RowPart& total) const {
            FS_UNROLL
            for (int i = 0; i < kCount; ++i) {
                const float weight =
                    ptx::ex2(ptx::sub_rn(maximum[i], finite_maximum(total.maximum)));
                FS_UNROLL
                for (int j = 0; j < 4; ++j) total.o[j] = ptx::fma_rn(o[i][j], weight, total.o[j]);
                total.sum = ptx::fma_rn(sum[i], weight, total.sum);
            }
        }
    };

    // Of all pieces of the tile this thread's, kTogether at a time; kAhead parts are read before
    // one is added, which hides the way to memory.
    template <int kTogether>
    FS_DEVICE void add_pieces() const {
        constexpr int kDepth = kAhead / kTogether;
        constexpr u32 kStep = kTogether * Kernel::kThreads;
        const u32 pieces = rows_ * kPieces;
        _Pragma("unroll 1") for (u32 first = threadIdx.x; first < pieces; first += kStep) {
            RowPart total[kTogether];
            _Pragma("unroll 1") for (i32 slice = 0; slice < work_.slices; slice += kDepth) {
                Parts<kDepth> parts[kTogether];
                // Several pieces are taken together where kDepth parts are all.
                if (kTogether == 1 && slice == 0) {
                    total[0].maximum = largest_from(kDepth, piece_at(first, 0));
                }
                FS_UNROLL
                for (int n = 0; n < kTogether; ++n) read(parts[n], piece_at(first, n), slice);
                FS_UNROLL
                for (int n = 0; n < kTogether; ++n) {
                    if (slice == 0) total[n].maximum = parts[n].largest(total[n].maximum);
                    parts[n].add_to(total[n]);
                }
            }
            FS_UNROLL
            for (int n = 0; n < kTogether; ++n) {
                const u32 i = first + n * Kernel::kThreads;
                if (i < pieces) this->store(total[n], i / kPieces, i % kPieces);
            }
        }
    }

    // Beyond the last piece the last is read again, and not stored.
    FS_DEVICE u32 piece_at(u32 first, int n) const {
        return min(first + n * Kernel::kThreads, rows_ * kPieces - 1);
    }

    // Parts of the slices from `slice` on; those behind the last are none.
    template <int kCount>
    FS_DEVICE void read(Parts<kCount>& parts, u32 piece, i32 slice) const {
        const i64 at = first_part(piece / kPieces) + slice;
        const float* const o = args_.parts + at * kD + piece % kPieces * kColumns;
        const float* const statistics = args_.statistics + 2 * at;
        FS_UNROLL
        for (int i = 0; i < kCount; ++i) {
            const bool exists = slice + i < work_.slices;
            ptx::ld_global_f32x4_or_zero(parts.o[i], o + i * kD, exists);
            ptx::ld_global_f32x2_or_zero(parts.maximum[i], parts.sum[i], statistics + 2 * i,
                                         exists);
            if (!exists) parts.maximum[i] = kNegativeInfinity;
        }
    }

    // The largest maximum of a piece's row, of the slices from `slice` on. As many are read before
    // one is looked at as parts are: all that there are, mostly, in one wait.
    FS_DEVICE float largest_from(i32 slice, u32 piece) const {
        const float* const statistics = args_.statistics + 2 * first_part(piece / kPieces);
        float top = kNegativeInfinity;
        _Pragma("unroll 1") for (; slice < work_.slices; slice += kAhead) {
            float maximum[kAhead];
            FS_UNROLL
            for (int i = 0; i < kAhead; ++i) {
                // Behind the last slice the last is read again.
                maximum[i] = ptx::ld_global_f32(statistics + 2 * min(slice + i, work_.slices - 1));
            }
            FS_UNROLL
            for (int i = 0; i < kAhead; ++i) top = ptx::max(maximum[i], top);
        }
        return top;
    }

    // The part of slice 0 of a row of the q tile, in scratch memory: those of the others follow.
    // Where rows are packed, they lie as they do, or a q tile a sequence, whichever is less.
    FS_DEVICE i64 first_part(u32 row) const {
        if constexpr (kNeeds.sequences) {
            const bool as_rows = args_.part_rows == args_.q_len * args_.group;
            const i32 first = as_rows ? work_.q_begin * args_.group : work_.batch * Kernel::kBr;
            return (static_cast<i64>(work_.kv_head) * args_.part_rows + first + row) * args_.slices;
        }
        const i64 tile =
            (static_cast<i64>(work_.batch) * args_.kv_heads + work_.kv_head) * args_.q_tiles +
            work_.tile;
        return (tile * args_.part_rows + row) * args_.slices;
    }
};

}  // namespace flashsmith::decode
