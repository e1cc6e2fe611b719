// What C++ derives from the fields of Sm90DecodeConfig: included inside the struct, whose fields
// are written from kernels/sm90_decode/config.py.

constexpr int threads() const { return n_warps * 32; }
constexpr int min_blocks() const { return ctas; }

// A team shares a ring: a warp for every 16 query rows.
constexpr int team_warps() const { return B_r / 16; }
constexpr int teams() const { return n_warps / team_warps(); }

constexpr int ring_bytes(int element_bytes = 2) const {
    return teams() * stages * 2 * B_c * d_head * element_bytes;
}
// One for every stage of every team's ring, in whole chunks.
constexpr int barrier_bytes() const { return (teams() * stages + 1) / 2 * 16; }
// O with 8 floats of padding a row, and two statistics.
constexpr int exchange_bytes() const { return teams() * B_r * 4 * (d_head + 8 + 2); }

// Beside the rings where they go on from slice to slice: statistics and a stage of each team, in
// whole chunks, so that what lies behind them is aligned.
constexpr int handed_bytes() const { return runs ? (teams() * (B_r * 8 + 4) + 15) / 16 * 16 : 0; }

constexpr int smem_bytes(int element_bytes = 2) const {
    const int room =
        ring_bytes(element_bytes) > exchange_bytes() ? ring_bytes(element_bytes) : exchange_bytes();
    return B_r * d_head * element_bytes + room + handed_bytes() + barrier_bytes() + 16;
}
