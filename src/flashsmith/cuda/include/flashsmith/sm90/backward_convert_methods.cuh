// What C++ derives from the fields of Sm90ConvertConfig: included inside the struct.

constexpr int threads() const { return 128; }
constexpr int min_blocks() const { return 1; }
constexpr int q_tile_rows() const { return 8192 / d_head; }
