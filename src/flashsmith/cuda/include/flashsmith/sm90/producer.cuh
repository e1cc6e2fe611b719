// The producer: one thread draws q tiles, tells the consumers, and feeds the rings.
#pragma once

#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/tile_order.cuh"

namespace flashsmith::sm90 {

// The K and V that a tile needs, from block `first` on; n_blocks 0: no tile. They are counted down
// as they are loaded: the last one comes first, or where they ascend block 0, which `first` says by
// lying behind them all. Of tiles that begin near their rows `first` is `begins_near`. Where
// sequences have lengths of their own, `batch` is the slot that the tile's lies in.
template <bool kSkips>
struct SourceOf {
    i32 n_blocks, head, batch, first;
};
// With the blocks that a boolean mask leaves. Not a member that is empty in the others: that alone
// gives plain kernels other machine code.
template <>
struct SourceOf<true> {
    i32 n_blocks, head, batch, first;
    BlockLine line;
};

template <class Kernel>
struct Producer {
    using Plan = typename Kernel::Plan;
    using Args = typename Kernel::Args;
    static constexpr Sm90ForwardConfig kConfig = Kernel::kConfig;
    static constexpr int kCluster = kConfig.cluster;
    static constexpr int kShare = kConfig.B_c / kCluster;  // rows of a block this cta loads for all
    static constexpr u64 kKvPolicy = kConfig.l2_hints ? ptx::kEvictLast : ptx::kEvictNormal;
    static constexpr u64 kQPolicy = kConfig.l2_hints ? ptx::kEvictFirst : ptx::kEvictNormal;
    // With two slots a warpgroup the next tile's Q can come first. With fewer, waiting for a slot
    // must not hold up the V block that lets a warpgroup finish and free one.
    static constexpr bool kQFirst = kConfig.q_slots == 2 * kConfig.n_warpgroups;
    // Blocks of a tile that are still to be loaded when the next one is told and its Q loaded. Ctas
    // whose tiles are equally long end them together, and Q, K and V of all of them would come from
    // DRAM in one burst, which takes longer than the rings last.
    static constexpr i32 kAhead = kConfig.told_ahead;
    // Warpgroups whose Q is loaded while the tile before is.
    static constexpr int kEarlyQ =
        kAhead > 0 ? kConfig.n_warpgroups
                   : (kConfig.early_q ? kConfig.q_slots - kConfig.n_warpgroups : 0);
    // A launch begins with K.
    static constexpr bool kKFirst = kAhead > 0 && !Kernel::kListed;
    // Blocks of a tile that are still to be loaded when the next one is drawn: time enough for the
    // counter's answer. Who draws when a tile begins may hold the next one for as long as it lasts,
    // while others have nothing left to do.
    static constexpr i32 kDrawnBefore = kAhead + 2;

    using Source = SourceOf<Kernel::kSkips>;

    // What is drawn, and which of a range's two segments.
    struct Drawn {
        i32 index, second;
    };

    const Args& args;
    Plan smem;
    u32 rank;
    RingCursor q, k, v, tile;
    u32 draw_parity = 0;

    FS_DEVICE Producer(const Args& args, Plan smem, u32 rank)
        : args(args), smem(smem), rank(rank) {}

    // Loads in the order of need. With early_tiles consumers know the next tile before the last
    // block of this one is loaded: then nothing waits for the counter, or for the cta of the
    // cluster that asks it, before that block.
    FS_DEVICE void run() {
        constexpr bool kEarly = kConfig.early_tiles || kAhead > 0;
        Drawn at{first_number(), 0};
        [[maybe_unused]] Segment next;  // with kEarly: announced, its loads not begun
        if constexpr (kEarly) next = kKFirst ? open(at) : announce(at);
        Source previous{0, 0, 0, 0};
        while (!kEarly || next.tile.n_blocks > 0) {
            const Segment current = kEarly ? next : segment_or_none(at);
            // Asked for here or when little is left to load, needed when this tile's loads are out.
            const bool draws = (kEarly || current.tile.n_blocks > 0) && !current.goes_on;
            u32 count = draws && !kConfig.late_draw ? ask_counter(at.index) : 0;
            if constexpr (!kEarly) {
                publish(current);
                if (current.tile.n_blocks == 0) break;
            }
            const Source source = source_of(current, previous.n_blocks == 0);
            if constexpr (Kernel::kListed) {
                load_first(placed(current), source, previous);
            } else {
                load_first(current.tile, source, previous);
            }
            i32 n = source.n_blocks - 2;
            if constexpr (kConfig.late_draw) {
                load_blocks(n, kDrawnBefore, source);
                if (draws) count = ask_counter(at.index);
            }
            load_blocks(n, kEarly ? max(kAhead, 1) : 0, source);
            if constexpr (!kEarly) previous = source;
            at = after(at.index, current.goes_on, count);
            if constexpr (kEarly) {
                if constexpr (kAhead > 0) {
                    next = told(at);
                    load_beside(n, source, next);
                } else {
                    next = announce(at);
                    if (source.n_blocks > 1) {
                        load_k(0, source);
                        load_v(1, source);
                    }
                }
                previous = source;
            }
        }
        if (previous.n_blocks > 0) load_v(0, previous);
        if constexpr (Kernel::kPaged) {
            order_pages<false>(Kernel::Orders::kNone, k);
            order_pages<true>(Kernel::Orders::kNone, v);
        } else if constexpr (Kernel::kListed) {
            listed().end_tails();
        }
        leave();
    }

  private:
    // Tells the consumers of a tile, and loads what of its Q has a free slot.
    FS_DEVICE Segment announce(const Drawn& at) {
        const Segment segment = told(at);
        if (segment.tile.n_blocks > 0) load_q_of(segment, 0, kEarlyQ);
        return segment;
    }

    FS_DEVICE Segment told(const Drawn& at) {
        const Segment segment = segment_or_none(at);
        publish(segment);
        return segment;
    }

    FS_DEVICE void load_q_of(const Segment& segment, int first, int last) {
        if constexpr (Kernel::kListed) {
            load_q(placed(segment), first, last);
        } else {
            load_q(segment.tile, first, last);
        }
    }

    // The rest of a tile, and Q of the next: a warpgroup's at a time, so that K and V hardly wait.
    FS_DEVICE void load_beside(i32& n, const Source& source, const Segment& next) {
        _Pragma("unroll 1") for (int w = 0; w < kConfig.n_warpgroups; ++w) {
            load_blocks(n, max(n, 0), source);
            if (next.tile.n_blocks > 0) load_q_of(next, w, w + 1);
        }
        load_blocks(n, 0, source);
    }

    // A launch's first tile. All ctas load theirs at the same time: what a first product needs
    // comes first, which is K and the Q of the warpgroup that sees the highest keys.
    FS_DEVICE Segment open(const Drawn& at) {
        const Segment segment = told(at);
        if (segment.tile.n_blocks == 0) return segment;
        load_k(segment.tile.n_blocks - 1, source_of(segment, true));
        _Pragma("unroll 1") for (int w = kConfig.n_warpgroups - 1; w >= 0; --w) {
            load_q_slot(segment.tile, w, w);
        }
        q.stage = kConfig.n_warpgroups;
        return segment;
    }

    FS_DEVICE typename Kernel::Listed listed() const { return {smem.base}; }

    // Tiles, or whole ones and ranges, that blocks draw.
    FS_DEVICE i32 numbers() const {
        if constexpr (Kernel::kListed && !Kernel::kSliced) {
            return TileList(args.scratch).entries * args.heads;
        }
        return Kernel::kSplits ? args.whole_tiles + args.split_ranges : args.tiles;
    }

    FS_DEVICE Segment segment_or_none(const Drawn& at) const {
        if constexpr (Kernel::kListed) {
            if (at.index >= numbers()) return no_listed_segment<Kernel>(smem, tile);
        }
        if (at.index >= numbers()) return {{0, 0, 0, 0}, {0, 0, Slice::kWhole}, false};
        if constexpr (Kernel::kListed) {
            return listed_segment<Kernel>(args, at.index, rank, smem, tile);
        } else {
            return decode_segment<Kernel>(args, at.index, at.second, rank);
        }
    }

    FS_DEVICE Source source_of(const Segment& at, bool is_first) const {
        const i32 kv_head = Division(at.tile.head, args.kv_group).quotient;
        Source source{at.tile.n_blocks, kv_head, at.tile.batch, first_of(at, is_first)};
        if constexpr (Kernel::kSkips) {
            source.line = line_of_tile<Kernel>(args, at.tile.batch, at.tile.head, at.tile.row);
        }
        return source;
    }

    FS_DEVICE i32 first_of(const Segment& at, bool is_first) const {
        if constexpr (Kernel::kBeginsNear) {
            return begins_near<Kernel>(args, at.tile.row, at.tile.n_blocks, rank);
        }
        constexpr Ascending kUp = Kernel::kAscends;
        const bool ascends = kUp == Ascending::kALL || (kUp == Ascending::kFIRST && is_first);
        return ascends ? at.tile.n_blocks : at.slice.first;
    }

    FS_DEVICE static i32 block_of(const Source& at, i32 n) {
        if constexpr (Kernel::kSkips) return at.line.block(n);
        if constexpr (Kernel::kBeginsNear) return block_near(at.first, n, at.n_blocks);
        if constexpr (Kernel::kAscends == Ascending::kNONE) return at.first + n;
        return at.first == at.n_blocks ? at.n_blocks - 1 - n : at.first + n;
    }

    FS_DEVICE i32 clusters() const { return static_cast<i32>(gridDim.x) / kCluster; }

    // Whether what follows number `index` is drawn. With a fixed order that is the ranges, which
    // have to come to blocks that run, in their order.
    FS_DEVICE bool counts_after(i32 index) const {
        if constexpr (kConfig.scheduler == Scheduler::kDYNAMIC) return true;
        if constexpr (!Kernel::kSplits) return false;
        return args.split_ranges > 0 && index + clusters() >= args.whole_tiles;
    }

    // A block's first number is its own, unless there are ranges only.
    FS_DEVICE bool counts_from_start() const { return Kernel::kSplits && args.whole_tiles == 0; }

    FS_DEVICE i32 first_number() {
        const i32 own = static_cast<i32>(blockIdx.x) / kCluster;
        return existing(counts_from_start() ? number_after(own, ask_counter(own)) : own);
    }

    // From number `index` on, the first that stands for something: tiles may have fewer slices than
    // the longest one has.
    FS_DEVICE i32 existing(i32 index) {
        if constexpr (Kernel::kSliced) {
            while (index < numbers() && segment_or_none({index, 0}).tile.n_blocks == 0) {
                index = number_after(index, ask_counter(index));
            }
        }
        return index;
    }

    FS_DEVICE u32 ask_counter(i32 index) const {
        return counts_after(index) && rank == 0 ? ptx::atom_add_u32(args.counter, 1) : 0;
    }

    FS_DEVICE i32 number_after(i32 index, u32 count) {
        if constexpr (kConfig.scheduler == Scheduler::kSINGLE) return numbers();
        if (!counts_after(index)) return index + clusters();
        if constexpr (kConfig.scheduler == Scheduler::kSTATIC) {
            return share(static_cast<i32>(count) + args.whole_tiles);
        }
        return share(static_cast<i32>(count) + (counts_from_start() ? 0 : clusters()));
    }

    FS_DEVICE Drawn after(i32 index, bool goes_on, u32 count) {
        return goes_on ? Drawn{index, 1} : Drawn{existing(number_after(index, count)), 0};
    }

    // The cluster's first block drew for all: it hands the number on, one at a time.
    FS_DEVICE i32 share(i32 next) {
        if constexpr (kCluster == 1) return next;
        const SmemAddr mailbox = smem.tile(kTileSlots);
        if (rank == 0) {
            for (u32 peer = 1; peer < kCluster; ++peer) {
                ptx::mbarrier_wait_cluster(smem.draw_empty(), draw_parity ^ 1);
                ptx::st_shared_cluster_b32(mailbox, peer, static_cast<u32>(next));
                ptx::mbarrier_arrive_release_cluster(smem.draw_full(), peer);
            }
        } else {
            ptx::mbarrier_wait_cluster(smem.draw_full(), draw_parity);
            next = static_cast<i32>(ptx::ld_shared_b32(mailbox));
            ptx::mbarrier_arrive_release_cluster(smem.draw_empty(), 0);
        }
        draw_parity ^= 1;
        return next;
    }

    FS_DEVICE void publish(const Segment& current) {
        if constexpr (!Kernel::kListed) {
            ptx::mbarrier_wait(smem.tile_empty(tile.stage), tile.parity);
            current.tile.put(smem.tile(tile.stage));
        }
        if constexpr (Kernel::kSplits) current.slice.put(smem.tile(tile.stage));
        ptx::mbarrier_arrive(smem.tile_full(tile.stage));
        tile.advance(kTileSlots);
    }

    // In the order of need: a warpgroup starts this tile's first Q Kᵀ before its last P V of the
    // previous one.
    FS_DEVICE void load_first(const QTile& current, const Source& source, const Source& previous) {
        if constexpr (kQFirst) load_q(current, kEarlyQ, kConfig.n_warpgroups);
        if (!kKFirst || previous.n_blocks > 0) load_k(source.n_blocks - 1, source);
        if (previous.n_blocks > 0) load_v(0, previous);
        if constexpr (!kQFirst) load_q(current, kEarlyQ, kConfig.n_warpgroups);
    }

    // K of blocks n .. last, and V of the ones before them.
    FS_DEVICE void load_blocks(i32& n, i32 last, const Source& source) {
        _Pragma("unroll 1") for (; n >= last; --n) {
            load_k(n, source);
            load_v(n + 1, source);
        }
    }

    // A tile of a sequence with lengths of its own, with rows counted from the tensor's first.
    // Registers are few: what was told to consumers is read again.
    FS_DEVICE QTile placed(const Segment& at) const {
        const i32 slot = at.tile.batch;
        QTile found = tile_in<Kernel::kNeeds>(smem.tile(slot));
        found.row += listed().first_row(slot);
        return found;
    }

    // Of warpgroups first .. last - 1.
    FS_DEVICE void load_q(const QTile& at, int first, int last) {
        _Pragma("unroll 1") for (int w = first; w < last; ++w) {
            ptx::mbarrier_wait(smem.q_empty(q.stage), q.parity);
            load_q_slot(at, w, q.stage);
            q.advance(kConfig.q_slots);
        }
    }

    // Of warpgroup `w`, into a slot that is free.
    FS_DEVICE void load_q_slot(const QTile& at, int w, int slot) {
        const SmemAddr full = smem.q_full(slot);
        ptx::mbarrier_arrive_expect_tx(full, kConfig.q_slot_bytes());
        FS_UNROLL
        for (int panel = 0; panel < kConfig.panels(); ++panel) {
            ptx::tma_load_4d<kQPolicy>(
                smem.q(slot) + panel * kWarpgroupRows * kPanelRowBytes, args.q,
                {panel * kPanelColumns, at.row + w * kWarpgroupRows, at.head, at.batch}, full);
        }
    }

    FS_DEVICE void load_k(i32 n, const Source& at) {
        const SmemAddr dst = smem.k(k.stage), full = smem.k_full(k.stage);
        if constexpr (Kernel::kListed) {
            load_listed<false>(args.k, n, at, dst, full, smem.k_empty(k.stage), k);
        } else {
            load_block(args.k, n, at, dst, full, smem.k_empty(k.stage), k);
        }
    }

    FS_DEVICE void load_v(i32 n, const Source& at) {
        const SmemAddr dst = smem.v(v.stage), full = smem.v_full(v.stage);
        if constexpr (Kernel::kListed) {
            load_listed<true>(args.v, n, at, dst, full, smem.v_empty(v.stage), v);
        } else {
            load_block(args.v, n, at, dst, full, smem.v_empty(v.stage), v);
        }
    }

    FS_DEVICE void load_block(const TensorMap& map, i32 n, const Source& at, SmemAddr dst,
                              SmemAddr full, SmemAddr empty, RingCursor& place) {
        ptx::mbarrier_wait(empty, place.parity);  // every reader, of all blocks, has left the stage
        ptx::mbarrier_arrive_expect_tx(full, kConfig.kv_bytes());
        const i32 share = static_cast<i32>(rank) * kShare;
        const i32 block = block_of(at, n);
        FS_UNROLL
        for (int panel = 0; panel < kConfig.panels(); ++panel) {
            const ptx::TmaCoordinates from{panel * kPanelColumns, block * kConfig.B_c + share,
                                           at.head, at.batch};
            copy_panel(map, from, dst + (panel * kConfig.B_c + share) * kPanelRowBytes, full);
        }
        place.advance(kConfig.kv_stages);
    }

    // The same of a sequence with lengths of its own. kIsV: what is behind its end is cleared.
    template <bool kIsV>
    FS_DEVICE void load_listed(const TensorMap& map, i32 n, const Source& at, SmemAddr dst,
                               SmemAddr full, SmemAddr empty, RingCursor& place) {
        if constexpr (Kernel::kPaged) {
            order_pages<kIsV>(block_of(at, n) * kTileSlots + at.batch, place);
            return;
        }
        ptx::mbarrier_wait(empty, place.parity);  // every reader, of all blocks, has left the stage
        const auto keys = listed().keys(at.batch);
        const i32 first = block_of(at, n) * kConfig.B_c;
        // Packed sequences are a batch of one.
        const i32 batch = Kernel::kNeeds.sequences ? 0 : QTile::get(smem.tile(at.batch)).batch;
        if (kIsV && keys.length - first < kConfig.B_c) {
            const i32 rows = max(keys.length - first, 0);
            full = listed().send_tail(place.stage, rows, kConfig.kv_bytes());
        } else {
            ptx::mbarrier_arrive_expect_tx(full, kConfig.kv_bytes());
        }
        const i32 share = static_cast<i32>(rank) * kShare;
        FS_UNROLL
        for (int panel = 0; panel < kConfig.panels(); ++panel) {
            const ptx::TmaCoordinates from{panel * kPanelColumns, keys.begin + first + share,
                                           keys.head, batch};
            copy_panel(map, from, dst + (panel * kConfig.B_c + share) * kPanelRowBytes, full);
        }
        place.advance(kConfig.kv_stages);
    }

    // What is to come into the next stage, which need not be free yet.
    template <bool kIsV>
    FS_DEVICE void order_pages(u32 order, RingCursor& place) const {
        typename Kernel::Orders{smem.base}.send(kIsV, place.stage, place.parity, order);
        place.advance(kConfig.kv_stages);
    }

    // 64 columns of this cta's share of a kv block; to all of a cluster.
    FS_DEVICE void copy_panel(const TensorMap& map, const ptx::TmaCoordinates& from, SmemAddr to,
                              SmemAddr full) {
        if constexpr (kCluster > 1) {
            ptx::tma_load_4d_multicast<kKvPolicy>(to, map, from, full, (1 << kCluster) - 1);
        } else {
            ptx::tma_load_4d<kKvPolicy>(to, map, from, full);
        }
    }

    // The last of all to draw sets the counters back for the next launch.
    FS_DEVICE void leave() {
        if (rank != 0 || !counts_after(numbers())) return;
        ptx::fence_gpu();
        if (ptx::atom_add_u32(args.counter + 1, 1) == static_cast<u32>(clusters() - 1)) {
            args.counter[0] = 0;
            args.counter[1] = 0;
        }
    }
};

}  // namespace flashsmith::sm90
