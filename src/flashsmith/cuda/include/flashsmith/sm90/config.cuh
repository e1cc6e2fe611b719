// What one forward kernel of the Hopper family is: the mirror of kernels/sm90_forward/config.py.
#pragma once

#include "flashsmith/base/dtype.cuh"
#include "flashsmith/base/types.cuh"

namespace flashsmith {

enum class Statistics : int { kMAX = 0, kVOTE = 1, kBITS = 2, kSUM = 3 };
enum class Ascending : int { kNONE = 0, kFIRST = 1, kALL = 2 };
enum class Scheduler : int { kSINGLE = 0, kSTATIC = 1, kDYNAMIC = 2 };

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;  // of the A operand of wgmma m64nNk16

// Shared memory holds matrices as panels of 64 columns: rows of 128 bytes, the widest swizzle.
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;

// Named barriers from here on are for the threads of one warpgroup each; those before, for turns.
inline constexpr u32 kWarpgroupBarrier = 8;

inline constexpr int kTileSlots = 4;
inline constexpr int kBarrierBytes = 8;

struct HopperForwardKernelConfig {
    DType dtype = required<DType>();
    int d_head = required<int>();
    int n_warpgroups = required<int>();  // consumers of 64 query rows each
    int B_c = required<int>();           // key rows of one step
    int kv_stages = required<int>();
    int q_slots = required<int>();
    bool overlap = required<bool>();
    bool pingpong = required<bool>();
    bool early_rescale = required<bool>();
    bool early_tests = required<bool>();
    Statistics statistics = required<Statistics>();
    int rescale_threshold = required<int>();  // powers of two; 0: rescale in every block
    bool half_blocks = required<bool>();
    Ascending ascending = required<Ascending>();
    bool early_exps = required<bool>();
    bool l_by_mma = required<bool>();
    bool p_in_smem = required<bool>();
    int cluster = required<int>();
    Scheduler scheduler = required<Scheduler>();
    bool late_draw = required<bool>();
    bool early_tiles = required<bool>();
    bool early_q = required<bool>();
    bool split_last = required<bool>();
    bool l2_sections = required<bool>();
    bool o_staged = required<bool>();
    bool o_halves = required<bool>();
    bool late_store = required<bool>();
    bool l2_hints = required<bool>();
    int consumer_registers = required<int>();
    int producer_registers = required<int>();

    constexpr int threads() const { return kWarpgroupThreads * (n_warpgroups + 1); }
    // One block an SM: the kernel is persistent, and setmaxnreg needs the registers at entry.
    constexpr int min_blocks() const { return 1; }
    constexpr int tile_q() const { return kWarpgroupRows * n_warpgroups; }
    constexpr int panels() const { return (d_head + kPanelColumns - 1) / kPanelColumns; }
    constexpr int p_panels() const { return (B_c + kPanelColumns - 1) / kPanelColumns; }

    constexpr int q_slot_bytes() const { return kWarpgroupRows * kPanelRowBytes * panels(); }
    constexpr int kv_bytes() const { return B_c * kPanelRowBytes * panels(); }
    // Panels of O that a warpgroup has room to stage at a time.
    constexpr int o_panels() const {
        if (!o_staged) return 0;
        return o_halves ? (panels() + 1) / 2 : panels();
    }
    constexpr int o_slot_bytes() const { return kWarpgroupRows * kPanelRowBytes * o_panels(); }
    constexpr int p_slot_bytes() const {
        return p_in_smem ? kWarpgroupRows * kPanelRowBytes * p_panels() : 0;
    }
    // A panel of ones beside V: its product with P is the sum of each row.
    constexpr int ones_bytes() const { return l_by_mma ? B_c * kPanelRowBytes : 0; }
    // Full and empty of Q, K, V, the tile ring and the tiles drawn for a cluster.
    constexpr int barriers() const { return 2 * (q_slots + 2 * kv_stages + kTileSlots + 1); }

    // A tile takes 16 bytes, and 16 more where it may be a part of one.
    constexpr int tile_slot_bytes() const { return split_last ? 32 : 16; }

    constexpr int smem_bytes() const {
        return q_slots * q_slot_bytes() + 2 * kv_stages * kv_bytes() +
               n_warpgroups * o_slot_bytes() + n_warpgroups * p_slot_bytes() + ones_bytes() +
               barriers() * kBarrierBytes + (kTileSlots + 1) * tile_slot_bytes();
    }

    constexpr bool operator==(const HopperForwardKernelConfig&) const = default;
};

}  // namespace flashsmith
