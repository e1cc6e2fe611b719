// What C++ derives from the fields of Sm90ForwardConfig: included inside the struct, whose fields
// are written from kernels/sm90_forward/config.py.

constexpr int threads() const { return kWarpgroupThreads * (n_warpgroups + 1); }
// One block an SM: the kernel is persistent, and setmaxnreg needs the registers at entry.
constexpr int min_blocks() const { return 1; }
constexpr int tile_q() const { return kWarpgroupRows * n_warpgroups; }
constexpr int panels() const { return (d_head + kPanelColumns - 1) / kPanelColumns; }

constexpr int q_slot_bytes() const { return kWarpgroupRows * kPanelRowBytes * panels(); }
constexpr int kv_bytes() const { return B_c * kPanelRowBytes * panels(); }
// Panels of O that a warpgroup has room to stage at a time.
constexpr int o_panels() const {
    if (!o_staged) return 0;
    return o_halves ? (panels() + 1) / 2 : panels();
}
constexpr int o_slot_bytes() const { return kWarpgroupRows * kPanelRowBytes * o_panels(); }
// A panel of ones beside V: its product with P is the sum of each row.
constexpr int ones_bytes() const { return l_by_mma ? B_c * kPanelRowBytes : 0; }
// Full and empty of Q, K, V, the tile ring and the tiles drawn for a cluster.
constexpr int barriers() const { return 2 * (q_slots + 2 * kv_stages + kTileSlots + 1); }

// A tile takes 16 bytes, and 16 more where it may be a part of one.
constexpr int tile_slot_bytes() const { return split_last ? 32 : 16; }

constexpr int smem_bytes() const {
    return q_slots * q_slot_bytes() + 2 * kv_stages * kv_bytes() + n_warpgroups * o_slot_bytes() +
           ones_bytes() + barriers() * kBarrierBytes + (kTileSlots + 1) * tile_slot_bytes();
}
