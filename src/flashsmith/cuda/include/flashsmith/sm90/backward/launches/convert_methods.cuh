// What C++ derives from the fields of Sm90ConvertConfig: included inside the struct.

constexpr int threads() const { return 128; }
constexpr int min_blocks() const { return 1; }
constexpr int q_tile_rows() const { return d_head > 128 ? 64 : 8192 / d_head; }
// Keys of a kv block.
constexpr int keys() const { return d_head > 128 ? 64 : 128; }
// Of 64 x 64, of a q tile.
constexpr int pieces() const { return d_head > 128 ? d_head / 64 : 2; }
