// What C++ derives from the fields of Sm90TilesConfig: included inside the struct, whose fields
// are written from kernels/sm90_backward/parts.py.

constexpr int threads() const { return 3 * kWarpgroupThreads; }
// One block an SM: the kernel is persistent, and setmaxnreg needs the registers at entry.
constexpr int min_blocks() const { return 1; }
// Whether the warpgroups that multiply share 64 keys and have a role each (wide.cuh).
constexpr bool has_roles() const { return d_head > 128; }
constexpr int keys() const { return has_roles() ? kWarpgroupRows : 2 * kWarpgroupRows; }
// Query rows of one step.
constexpr int q_tile_rows() const { return has_roles() ? 64 : 8192 / d_head; }
constexpr int panels() const { return d_head / kPanelColumns; }

constexpr int row_stages() const { return 2; }
constexpr int block_slots() const { return 4; }
constexpr int kv_bytes() const { return keys() * kPanelRowBytes * panels(); }
constexpr int q_bytes() const { return q_tile_rows() * kPanelRowBytes * panels(); }
// With `two_passes` dS stays in registers, and this launch adds nothing to dQ.
constexpr int ds_bytes() const { return two_passes ? 0 : keys() * q_tile_rows() * 2; }
constexpr bool stages_dq() const { return !dq_red && !two_passes; }
// Whether kv blocks may run in any order.
constexpr bool in_any_order() const { return unordered || two_passes; }
// Whether threads of the producer's warpgroup add what is staged, in order.
constexpr bool has_adders() const { return !unordered && stages_dq(); }
// Whether they are more than one for each warpgroup, poll early, or have heads that rise.
constexpr bool has_many_adders() const { return adders > 2 || early_polls || rising; }
// Barriers for staged pieces of a warpgroup, one after the other. Of three adders one comes to its
// piece when the one four before it is known to be staged, but not always the one right before.
constexpr int dq_phases() const { return adders > 2 ? 4 : 1; }
// Whether the order of kv blocks has an end of its own (order.cuh).
constexpr bool ends_short() const { return short_last || rising; }
// P in float32, on its way from one warpgroup to the other.
constexpr int p_bytes() const { return has_roles() ? keys() * q_tile_rows() * 4 : 0; }
// One piece of dQ, 64 x 64 float32 numbers.
constexpr int piece_bytes() const { return 16384; }
constexpr int statistics_bytes() const { return 2 * q_tile_rows() * (fold ? 16 : 4); }
constexpr int ones_bytes() const { return fold ? 2048 : 0; }
// How many q tiles each warp that multiplies has rounded.
constexpr int rounded_bytes() const { return rounds_dq ? 8 * 4 : 0; }
// Full and empty of K, V, Q, dO, dS, the ring of kv blocks, and staged dQ or P.
constexpr int barriers() const {
    const int handed = has_roles() ? 2 : 2 * dq_phases() + 2;
    return 2 * (2 + 2 * row_stages() + ds_stages + block_slots()) + handed;
}

constexpr int smem_bytes() const {
    return 2 * kv_bytes() + 2 * row_stages() * q_bytes() + ds_stages * ds_bytes() +
           (stages_dq() ? 2 * piece_bytes() : 0) + p_bytes() + row_stages() * statistics_bytes() +
           ones_bytes() + barriers() * 8 + block_slots() * 16 + rounded_bytes();
}
