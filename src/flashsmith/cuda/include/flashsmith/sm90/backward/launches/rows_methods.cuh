// What C++ derives from the fields of Sm90RowsConfig: included inside the struct.

constexpr int threads() const { return 256; }
constexpr int min_blocks() const { return 1; }
constexpr int q_tile_rows() const { return d_head > 128 ? 64 : 8192 / d_head; }
// Of a q tile: a row's LSE and delta, 16 bytes each or 4.
constexpr int statistics_bytes() const { return 2 * q_tile_rows() * (fold ? 16 : 4); }
