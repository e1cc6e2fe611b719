// What C++ derives from the fields of Sm90QueriesConfig: included inside the struct.

constexpr int threads() const { return 3 * kWarpgroupThreads; }
constexpr int min_blocks() const { return 1; }
// Query rows of a cta: 64 of each warpgroup that multiplies.
constexpr int rows() const { return 2 * kWarpgroupRows; }
constexpr int keys() const { return 64; }
constexpr int panels() const { return d_head / kPanelColumns; }
constexpr int q_bytes() const { return rows() * kPanelRowBytes * panels(); }
constexpr int kv_bytes() const { return keys() * kPanelRowBytes * panels(); }
constexpr int k_stages() const { return 2; }
// Of a block of V, that are loaded and released one by one.
constexpr int v_parts() const { return v_halves ? 2 : 1; }
// Full of Q and dO, full and empty of each part of V and each stage of K.
constexpr int barriers() const { return 2 + 2 * v_parts() + 2 * k_stages(); }

constexpr int smem_bytes() const {
    return 2 * q_bytes() + (k_stages() + 1) * kv_bytes() + barriers() * 8;
}
