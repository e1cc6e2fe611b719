// How results of a decode kernel are added up: of teams in shared memory, of slices through scratch
// memory, always in the same order.
#pragma once

#include "flashsmith/decode/team.cuh"
#include "flashsmith/ptx/atomic.cuh"
#include "flashsmith/ptx/cluster.cuh"

namespace flashsmith::decode {

// Four columns of one row of O, before the division by its sum.
struct RowPart {
    float o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float maximum = kNegativeInfinity;
    float sum = 0.0f;

    FS_DEVICE void add(const float (&other)[4], float other_maximum, float other_sum) {
        const float top = ptx::max(maximum, other_maximum);
        const float mine = ptx::ex2(ptx::sub_rn(maximum, finite_maximum(top)));
        const float theirs = ptx::ex2(ptx::sub_rn(other_maximum, finite_maximum(top)));
        FS_UNROLL
        for (int i = 0; i < 4; ++i) {
            o[i] = ptx::fma_rn(other[i], theirs, ptx::mul_rn(o[i], mine));
        }
        sum = ptx::fma_rn(other_sum, theirs, ptx::mul_rn(sum, mine));
        maximum = top;
    }
};

template <class Kernel>
class DecodeOutput {
  protected:
    static constexpr Needs kNeeds = Kernel::kNeeds;
    using Args = typename Kernel::Args;
    static constexpr int kD = Kernel::kD;
    static constexpr int kColumns = 4;             // of one thread at a time
    static constexpr u32 kPieces = kD / kColumns;  // of a row
    static constexpr int kAhead = 16;              // slices that are read before one is added

  public:
    FS_DEVICE DecodeOutput(const Args& args, const DecodeWork& work, SmemAddr smem)
        : args_(args), work_(work), smem_(smem) {
        const i32 rows = q_len_of<Kernel>(args, work) * args.group;
        rows_ = min(rows - work.tile * Kernel::kBr, Kernel::kBr);
    }

    // Adds up what the teams handed over: O where this is the only slice, else a part of it.
    FS_DEVICE void add_teams() const {
        _Pragma("unroll 1") for (u32 i = threadIdx.x; i < rows_ * kPieces; i += Kernel::kThreads) {
            const u32 row = i / kPieces;
            const u32 piece = i % kPieces;
            RowPart part;
            FS_UNROLL
            for (int team = 0; team < Kernel::kTeams; ++team) {
                float o[4], maximum, sum;
                take(o, maximum, sum, team, row, piece);
                part.add(o, maximum, sum);
            }
            if (work_.slices == 1) {
                store(part, row, piece);
            } else {
                const i64 at = part_at(work_.slice, row);
                store_part(args_.parts + at * kD + piece * kColumns, part.o);
                if (piece == 0) {
                    ptx::st_global_f32x2(args_.statistics + 2 * at, part.maximum, part.sum);
                }
            }
        }
    }

    // The last cta to come adds up all slices, from the first on, whoever computed them.
    // `count`: how many this cta has computed.
    FS_DEVICE void add_slices(u32 count = 1) const {
        if (work_.slices == 1 || !comes_last(count)) return;
        if (work_.slices <= kAhead / 2 && rows_ * kPieces > Kernel::kThreads) {
            add_pieces<2>();
        } else {
            add_pieces<1>();
        }
        drop_parts(*this);
    }

    // Where a row of a slice's part lies in scratch memory.
    FS_DEVICE i64 part_at(i32 slice, u32 row) const { return part_row(slice) + row; }

  protected:
    FS_DEVICE static void store_part(float* to, const float (&o)[4]) {
        if constexpr (Kernel::kConfig.kept_parts) {
            ptx::st_global_f32x4_kept(to, o);
        } else {
            ptx::st_global_f32x4(to, o);
        }
    }

    // Parts that have been added up need not go to memory. `output`: knows where they lie.
    template <class Output>
    FS_DEVICE void drop_parts(const Output& output) const {
        if constexpr (Kernel::kConfig.kept_parts) {
            constexpr u32 kLine = 128 / sizeof(float), kLines = kD / kLine;
            ptx::bar_sync();  // all parts have been read
            _Pragma("unroll 1") for (u32 row = 0; row < rows_; ++row) {
                for (u32 i = threadIdx.x; i < work_.slices * kLines; i += Kernel::kThreads) {
                    const i64 at = output.part_at(i / kLines, row);
                    ptx::discard_128b(args_.parts + at * kD + i % kLines * kLine);
                }
            }
        }
    }

    // Four columns of a row, its maximum and its sum, as a team handed them over.
    FS_DEVICE void take(float (&o)[4], float& maximum, float& sum, u32 team, u32 row,
                        u32 piece) const {
        u32 stage = 0;
        if constexpr (Kernel::kRuns) {
            stage = ptx::ld_shared_b32(smem_ + Kernel::kHandedStages + team * 4);
        }
        const u32 place = team * Kernel::kBr + row;
        ptx::ld_shared_f32x4(o, HandedRow<Kernel>(smem_, place, stage).at(piece * 16));
        ptx::ld_shared_f32x2(maximum, sum, smem_ + Kernel::kStatistics + place * 8);
    }

    // Whether this cta's parts are the last of all.
    FS_DEVICE bool comes_last(u32 count) const {
        ptx::bar_sync();  // this cta's parts are written
        u32* const counter = args_.counters + tile_number();
        if (threadIdx.x == 0) {
            const u32 before = ptx::atom_add_acq_rel_gpu(counter, count);
            ptx::st_shared_b32(smem_ + Kernel::kWord, before);
        }
        ptx::bar_sync();  // and thread 0 has seen who came before
        if (ptx::ld_shared_b32(smem_ + Kernel::kWord) != work_.slices - count) {
            return false;
        }
        ptx::st_global_u32_if(threadIdx.x == 0, counter, 0);  // as the next launch wants it
        return true;
    }

    // Of all pieces of the tile this thread's, kTogether at a time: kAhead parts are read before
    // one is added, which hides the way to memory.
    template <int kTogether>
    FS_DEVICE void add_pieces() const {
        constexpr u32 kStep = kTogether * Kernel::kThreads;
        const u32 pieces = rows_ * kPieces;
        _Pragma("unroll 1") for (u32 first = threadIdx.x; first < pieces; first += kStep) {
            RowPart total[kTogether];
            _Pragma("unroll 1") for (i32 slice = 0; slice < work_.slices;
                                     slice += kAhead / kTogether) {
                add_parts(total, first, slice);
            }
            FS_UNROLL
            for (int n = 0; n < kTogether; ++n) {
                const u32 i = first + n * Kernel::kThreads;
                if (i < pieces) store(total[n], i / kPieces, i % kPieces);
            }
        }
    }

    // Adds the parts of the slices from `slice` on.
    template <int kTogether>
    FS_DEVICE void add_parts(RowPart (&total)[kTogether], u32 first, i32 slice) const {
        constexpr int kDepth = kAhead / kTogether;
        float o[kTogether][kDepth][4], maximum[kTogether][kDepth], sum[kTogether][kDepth];
        FS_UNROLL
        for (int n = 0; n < kTogether; ++n) {
            // Beyond the last piece the last is read again, and not stored.
            const u32 piece = min(first + n * Kernel::kThreads, rows_ * kPieces - 1);
            const i64 row = part_row(0) + piece / kPieces;
            FS_UNROLL
            for (int i = 0; i < kDepth; ++i) {
                // Beyond the last slice the last is read again, and not added.
                const i32 number = min(slice + i, work_.slices - 1);
                const i64 at = row + static_cast<i64>(number) * args_.part_rows;
                ptx::ld_global_f32x4(o[n][i], args_.parts + at * kD + piece % kPieces * kColumns);
                ptx::ld_global_f32x2(maximum[n][i], sum[n][i], args_.statistics + 2 * at);
            }
        }
        FS_UNROLL
        for (int n = 0; n < kTogether; ++n) {
            FS_UNROLL
            for (int i = 0; i < kDepth; ++i) {
                if (slice + i < work_.slices) total[n].add(o[n][i], maximum[n][i], sum[n][i]);
            }
        }
    }

    // Of all q tiles of the launch.
    FS_DEVICE i32 tile_number() const {
        return ((work_.batch - args_.first_batch) * args_.kv_heads + work_.kv_head) *
                   args_.q_tiles +
               work_.tile;
    }

    // The first row of a slice's part in scratch memory. Where rows are packed, parts of a slice
    // lie as they do, or a q tile a sequence, whichever is less.
    FS_DEVICE i64 part_row(i32 slice) const {
        if constexpr (kNeeds.sequences) {
            const bool as_rows = args_.part_rows == args_.q_len * args_.group;
            const i64 head = static_cast<i64>(work_.kv_head) * args_.slices + slice;
            const i64 first =
                as_rows ? static_cast<i64>(work_.q_begin) * args_.group : work_.batch * Kernel::kBr;
            return head * args_.part_rows + first;
        }
        const i64 tile =
            (static_cast<i64>(work_.batch) * args_.kv_heads + work_.kv_head) * args_.q_tiles +
            work_.tile;
        return (tile * args_.slices + slice) * args_.part_rows;
    }

    FS_DEVICE void store(const RowPart& part, u32 row, u32 piece) const {
        const QueryRow at = QueryRow::of<Kernel>(args_, work_, work_.tile * Kernel::kBr + row);
        if (kNeeds.lse && piece == 0 && args_.lse != nullptr) {
            const i64 head = static_cast<i64>(batch_of_rows<Kernel>(work_)) * args_.heads + at.head;
            float log2_sum = ptx::add_rn(ptx::lg2(part.sum), part.maximum);
            if constexpr (kNeeds.sinks) {
                log2_sum = lse_with_sink(part.sum, part.maximum, args_.sinks[at.head] * kLog2E);
            }
            const i32 before = kNeeds.sequences ? work_.q_begin : 0;
            args_.lse[head * args_.q_len + before + at.token] = ptx::mul_rn(log2_sum, kLn2);
        }
        if (kNeeds.narrow_d && piece * kColumns >= static_cast<u32>(args_.d_head)) return;
        float sum = part.sum;
        if constexpr (kNeeds.sinks) {
            sum = sum_with_sink(sum, part.maximum, args_.sinks[at.head] * kLog2E);
        }
        const float inverse = sum == 0.0f ? 0.0f : ptx::rcp(sum);
        const i64 element = element_of<Kernel>(args_.o, work_, at) + piece * kColumns;
        ptx::st_global_8b(args_.o.address + element * kElementBytes,
                          ptx::pack2<Kernel::kDType>(ptx::mul_rn(part.o[0], inverse),
                                                     ptx::mul_rn(part.o[1], inverse)),
                          ptx::pack2<Kernel::kDType>(ptx::mul_rn(part.o[2], inverse),
                                                     ptx::mul_rn(part.o[3], inverse)));
    }

    const Args& args_;
    const DecodeWork& work_;
    const SmemAddr smem_;
    u32 rows_;  // of the q tile that exist
};

}  // namespace flashsmith::decode
