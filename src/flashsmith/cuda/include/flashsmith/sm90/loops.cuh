// The consumers' two loops over tiles and blocks: with products overlapped, and one after the
// other.
#pragma once

#include "flashsmith/sm90/consumer.cuh"

namespace flashsmith::sm90 {

// Q Kᵀ of a block, its softmax, P V: nothing overlaps inside a warpgroup.
template <class Kernel>
struct PlainLoop {
    static constexpr Sm90ForwardConfig kConfig = Kernel::kConfig;
    using Turns = typename Kernel::Turns;
    using Products = typename Kernel::Products;

    Consumer<Kernel> consumer;

    FS_DEVICE PlainLoop(const typename Kernel::Args& args, typename Kernel::Plan smem,
                        int warpgroup)
        : consumer(args, smem, warpgroup) {}

    FS_DEVICE void run() {
        Turns::open(consumer.warpgroup);
        auto work = consumer.next_tile();
        while (work.n_blocks > 0) {
            if (work.own == 0) {
                consumer.skip_tile(work);
            } else {
                tile(work);
            }
            work = consumer.next_tile();
        }
    }

  private:
    FS_DEVICE void tile(const Work& work) {
        Turns::take(consumer.warpgroup);
        consumer.skip_pairs(work.n_blocks - work.own);
        consumer.wait_q();
        consumer.q.use();
        consumer.softmax.reset();
        consumer.begin_scores(work.slot);
        i32 n = work.own - 1;
        if (consumer.is_half(work.row, consumer.block_at(work.first, n))) {
            block<Kernel::kHalf>(work, n, true);
        } else {
            block<kConfig.B_c>(work, n, true);
        }
        _Pragma("unroll 1") while (--n >= 0) block<kConfig.B_c>(work, n, false);
        Turns::pass(consumer.warpgroup);
        consumer.finish(work.slot);
        consumer.store(work.slot);
    }

    template <int kKeys>
    FS_DEVICE void block(const Work& work, i32 n, bool first) {
        typename Products::template Scores<kKeys> s;
        consumer.k.wait();
        Products::template issue_qk<kKeys>(s, consumer.q.matrix, consumer.k.matrix);
        Turns::pass(consumer.warpgroup);
        ptx::wgmma_wait<0>();  // S is complete, K has been read
        ptx::fence_registers(s);
        consumer.release(consumer.k);
        if (n == 0) consumer.release_q();
        if constexpr (Kernel::kSkips) consumer.is_whole = consumer.line.entry(n).is_whole();
        consumer.softmax_alone(s, work.row, consumer.block_at(work.first, n), first);
        if (!first) consumer.softmax.rescale(consumer.o);
        consumer.v.wait();
        Turns::take(consumer.warpgroup);
        consumer.issue_pv(!first, kKeys < kConfig.B_c);
        ptx::wgmma_wait<0>();  // O is complete, P and V have been read
        ptx::fence_registers(consumer.o);
        consumer.release(consumer.v);
    }
};

// Whether half a block is its second half: in kernels that never take that, nothing.
template <bool kIsUsed>
struct UpperHalf {
    bool upper;
    FS_DEVICE void set_upper(bool to) { upper = to; }
    FS_DEVICE bool is_upper() const { return upper; }
};
template <>
struct UpperHalf<false> {
    FS_DEVICE void set_upper(bool) {}
    FS_DEVICE static constexpr bool is_upper() { return false; }
};

// One loop over all blocks of all tiles: each step issues Q Kᵀ of a block and P V of the one
// before, also where the two belong to different tiles. A plain step has no branch; a general one
// masks, starts and ends tiles; another has half a block, at the edge of a mask.
template <class Kernel>
struct OverlappedLoop : UpperHalf<Kernel::kUpperHalves> {
    static constexpr Sm90ForwardConfig kConfig = Kernel::kConfig;
    using Turns = typename Kernel::Turns;
    using Products = typename Kernel::Products;

    static constexpr bool kSum = kConfig.statistics == Statistics::kSUM;
    static constexpr Ascending kUp = Kernel::kAscends;
    // Half a block may be another one than a tile's first.
    static constexpr bool kHalvesAnywhere = kUp != Ascending::kNONE || Kernel::kUpperHalves;

    Consumer<Kernel> consumer;

    i32 row, slot;  // of the tile whose blocks are being multiplied with Q
    bool ascends;   // its blocks of keys come from the first on
    i32 last;       // of its blocks, in the order in which they come
    i32 n;          // of its blocks, after the one whose scores are in p or whose softmax runs
    i32 behind;     // blocks after the last that other warpgroups need
    bool first;     // that block is its tile's first: P V starts a new O
    bool half;      // of that block, at the mask's edge, only one half is seen
    i32 v_skipped;  // blocks of V to pass by before that one
    bool unsaved;   // O of the finished tile in `finished_slot` is still in registers
    i32 finished_slot;
    BlockEntry listed, next;  // the present block and the one after it, under a boolean mask

    FS_DEVICE OverlappedLoop(const typename Kernel::Args& args, typename Kernel::Plan smem,
                             int warpgroup)
        : consumer(args, smem, warpgroup) {}

    FS_DEVICE void run() {
        Turns::open(consumer.warpgroup);
        Work work = consumer.next_tile();
        while (work.n_blocks > 0) {
            if (work.own == 0) {
                consumer.skip_tile(work);
                work = consumer.next_tile();
                continue;
            }
            start(work);
            while (step<Step::kGeneral>(work)) {
                // Row maxima are set, Q stays, no mask until the tile ends.
                const i32 masked = Kernel::Mask::kHasLeft ? max(consumer.cut(row, last), 1) : 1;
                if (!first && n > masked && !consumer.needs_mask(row, block(n - 1))) {
                    i32 rest = ascends ? max(last + 1 - consumer.unmasked(row), 1) : masked;
                    if constexpr (Kernel::kBeginsNear && Kernel::Mask::kHides) {
                        const i32 cut = -1 - last;  // n of the block that the last key ends in
                        if (n > cut) rest = max(cut + 1, 1);
                    }
                    _Pragma("unroll 1") do { step<Step::kPlain>(work); }
                    while (n > rest);
                }
            }
            drain();
            if constexpr (Kernel::kEndsAlone) work = consumer.next_tile();
        }
    }

  private:
    enum class Step { kPlain, kGeneral, kHalf, kUpperHalf };

    // Where a step stands between tiles.
    struct Boundary {
        bool starts_tile;  // its Q Kᵀ is a tile's first
        i32 finished;      // slot of the tile that its P V then ends
        i32 skipped;       // blocks before the new tile's first that others need
    };

    // The block of keys that comes `n` before the last.
    FS_DEVICE i32 block(i32 n) const {
        if constexpr (Kernel::kSkips) return consumer.block_at(last, n);
        if constexpr (Kernel::kBeginsNear) return block_near(last, n, consumer.blocks);
        return ascends ? last - n : last + n;
    }

    // The one whose Q Kᵀ is at hand: where blocks are listed it is read once.
    FS_DEVICE i32 present() const {
        if constexpr (Kernel::kSkips) return listed.block();
        return block(n);
    }
    // The next one's entry is asked for a step ahead.
    FS_DEVICE void find_present(bool is_first) {
        if constexpr (Kernel::kSkips) {
            if (is_first) next = consumer.line.entry(n);
            listed = {static_cast<u32>(ptx::broadcast(static_cast<i32>(next.word)))};
            next = consumer.line.entry(max(n - 1, 0));
            consumer.is_whole = listed.is_whole();
        }
    }

    // Blocks of V that can be passed by behind the one in use: as many as the ring has stages, but
    // where a tile that ascends meets one that does not, both have some to pass by.
    FS_DEVICE i32 passable() const {
        return kUp == Ascending::kFIRST && ascends ? 0 : kConfig.kv_stages;
    }

    FS_DEVICE void begin(const Work& work) {
        row = work.row;
        slot = work.slot;
        n = work.own - 1;
        ascends = kUp == Ascending::kALL || (kUp == Ascending::kFIRST && consumer.tiles_seen == 1);
        last = ascends ? n : work.first;
        if constexpr (Kernel::kBeginsNear) consumer.blocks = work.n_blocks;
        behind = ascends ? work.n_blocks - work.own : 0;
        if constexpr (Kernel::kEndsAlone) {
            const i32 unseen = consumer.unseen(work);
            n -= unseen;
            last += unseen;
        }
        consumer.begin_scores(work.slot);
        find_present(true);
    }

    // Blocks before the first: K now, V when that of the first is needed; it lands later. As many V
    // as the ring has stages land without being released.
    FS_DEVICE void skip_front(i32 count) {
        const i32 late = min(count, passable());
        consumer.skip_pairs(count - late);
        consumer.skip_k(late);
        v_skipped = late;
    }

    // The first block of a run of tiles: nothing to overlap it with.
    FS_DEVICE void start(const Work& work) {
        begin(work);
        first = true;
        half = consumer.is_half(row, present());
        this->set_upper(false);
        v_skipped = 0;
        unsaved = false;
        // Not used before it is set again, but where sums are part of O the compiler reads it.
        if constexpr (kConfig.late_store && Kernel::kMmaSums) finished_slot = work.slot;
        if constexpr (Kernel::kEndsAlone) {
            skip_front(work.n_blocks - work.own);
        } else if (!ascends) {
            consumer.skip_pairs(work.n_blocks - work.own);
        }
        consumer.wait_q();
        consumer.q.use();
        typename Products::template Scores<kConfig.B_c> s;
        consumer.k.wait();
        Turns::take(consumer.warpgroup);
        Products::template issue_qk<kConfig.B_c>(s, consumer.q.matrix, consumer.k.matrix);
        Turns::pass(consumer.warpgroup);
        ptx::wgmma_wait<0>();
        ptx::fence_registers(s);
        consumer.release(consumer.k);
        if (!Kernel::kOInQ && n == 0) consumer.release_q();
        consumer.softmax.reset();
        consumer.softmax_alone(s, row, present(), true);
    }

    // One step. False, with nothing done, when it would start the next tile (in `next`) and that
    // cannot follow at once.
    template <Step kStep>
    FS_DEVICE bool step(Work& next) {
        constexpr bool kGeneral = kStep != Step::kPlain;
        Boundary at{kGeneral && n == 0, slot, 0};
        if (at.starts_tile) {
            if (first) {  // before the next tile is known, blocks may have to come to these stages
                consumer.skip_v(v_skipped);
                v_skipped = 0;
            }
            if constexpr (Kernel::kEndsAlone) {  // reckoned here: registers are few on the way
                behind = last - first_block_of<Kernel>(consumer.sequence(), row, 0);
                return false;
            }
            next = consumer.next_tile();
            at.skipped = behind + (kUp == Ascending::kALL ? 0 : next.n_blocks - next.own);
            if (next.n_blocks == 0 || next.own == 0 || at.skipped > passable()) return false;
            consumer.skip_k(at.skipped);
            consumer.wait_q();
            begin(next);
        } else {
            --n;
            find_present(false);
        }
        if constexpr (kGeneral) consumer.q.use();
        const bool at_edge = ascends ? kGeneral && n == 0 : at.starts_tile;
        if (at_edge && consumer.is_half(row, present())) {
            products<Step::kHalf>(at);
        } else {
            if constexpr (kGeneral && Kernel::kUpperHalves) {
                if (n == 0 && consumer.is_upper_half(row, present())) {
                    products<Step::kUpperHalf>(at);
                    return true;
                }
            }
            products<kStep>(at);
        }
        return true;
    }

    // Q Kᵀ of block n, or of half of it, and P V of the one in p.
    template <Step kStep>
    FS_DEVICE void products(const Boundary& at) {
        constexpr bool kGeneral = kStep != Step::kPlain;
        constexpr bool kIsUpper = kStep == Step::kUpperHalf;
        constexpr int kKeys = kStep == Step::kHalf || kIsUpper ? Kernel::kHalf : kConfig.B_c;
        const bool boundary = (kStep == Step::kHalf && !kHalvesAnywhere) || at.starts_tile;
        const bool starts_o = kGeneral && first;
        typename Products::template Scores<kKeys> s;
        if constexpr (!kGeneral) consumer.v.test();
        consumer.k.wait();
        Turns::take(consumer.warpgroup);
        if constexpr (kIsUpper) {
            const auto upper = consumer.k.matrix + Kernel::kHalf * kPanelRowBytes;
            Products::template issue_qk<kKeys>(s, consumer.q.matrix, upper);
        } else {
            Products::template issue_qk<kKeys>(s, consumer.q.matrix, consumer.k.matrix);
        }
        if (starts_o) {
            if (kConfig.late_store && unsaved) consumer.store(finished_slot);
            consumer.skip_v(v_skipped);
        } else if constexpr (kConfig.early_rescale) {
            consumer.softmax.rescale(consumer.o);
        }
        consumer.v.wait();
        consumer.issue_pv(!starts_o, kGeneral && half && (kHalvesAnywhere || starts_o),
                          this->is_upper());
        Turns::pass(consumer.warpgroup);
        if (boundary) {
            if constexpr (!Kernel::kMmaSums) consumer.finish(at.finished);
            consumer.softmax.reset();
            unsaved = true;
            finished_slot = at.finished;
        }
        typename Kernel::Bias::template Early<kKeys / 2> early;
        consumer.read_bias(early, row, present(), kIsUpper);
        ptx::wgmma_wait<1>();  // S is complete, K and, in a tile's last block, Q have been read
        ptx::fence_registers(s);
        consumer.release(consumer.k);
        if (kGeneral && !Kernel::kOInQ && n == 0) consumer.release_q();
        softmax_of<kGeneral, kIsUpper>(s, early, boundary);
        if (boundary) {
            if constexpr (Kernel::kMmaSums) consumer.finish(at.finished);
            if constexpr (!kConfig.late_store) consumer.store(at.finished);
        } else if constexpr (!kConfig.early_rescale) {
            consumer.softmax.rescale(consumer.o);
        }
        if constexpr (kGeneral) {
            first = boundary;
            half = kStep == Step::kHalf || kIsUpper;
            this->set_upper(kIsUpper);
            v_skipped = at.skipped;
        }
    }

    // From S to P; P V of the block before ends here. `starts_tile`: the block is its tile's first.
    template <bool kGeneral, bool kIsUpper, int kCount>
    FS_DEVICE void softmax_of(float (&s)[kCount],
                              const typename Kernel::Bias::template Early<kCount>& early,
                              bool starts_tile) {
        const auto line = consumer.apply_score(s, early, row, present(), kIsUpper);
        if constexpr (kSum) {
            bool masked = false;
            if constexpr (kGeneral) masked = consumer.hide(s, row, present(), kIsUpper);
            end_pv();
            consumer.k.test();
            consumer.softmax.exponentials_checked(consumer.p, s, line, consumer.factor, starts_tile,
                                                  masked);
        } else {
            if constexpr (kGeneral) consumer.hide(s, row, present(), kIsUpper);
            consumer.softmax.update_maximum(s, consumer.factor);
            consumer.k.test();
            consumer.softmax.exponentials(s, consumer.factor);
            end_pv();
            consumer.softmax.pack(consumer.p, s);
        }
    }

    FS_DEVICE void end_pv() {
        ptx::wgmma_wait<0>();  // O is complete, P and V have been read
        ptx::fence_registers(consumer.o);
        consumer.release(consumer.v);
    }

    // The last P V of a run of tiles: no Q Kᵀ to issue with it.
    FS_DEVICE void drain() {
        // Others wait for this turn; what follows takes as long as their step.
        if (Kernel::kEndsAlone && behind > 0) consumer.skip_k(1);
        if (first) {
            if (kConfig.late_store && unsaved) consumer.store(finished_slot);
            consumer.skip_v(v_skipped);
        } else if constexpr (kConfig.early_rescale) {
            consumer.softmax.rescale(consumer.o);
        }
        consumer.v.wait();
        consumer.issue_pv(!first, half && (kHalvesAnywhere || first), this->is_upper());
        if constexpr (!Kernel::kMmaSums) consumer.finish(slot);
        end_pv();
        if constexpr (Kernel::kMmaSums) consumer.finish(slot);
        consumer.store(slot);
        if (Kernel::kEndsAlone && behind > 0) {
            consumer.skip_v(1);
            consumer.skip_pairs(behind - 1);
        }
        if constexpr (Kernel::kOInQ) {
            ptx::bulk_wait_read_if(consumer.thread == 0);  // O has left the slot: Q may come to it
            consumer.release_q();
        }
        if constexpr (kUp != Ascending::kNONE) consumer.skip_pairs(behind);
    }
};

}  // namespace flashsmith::sm90
