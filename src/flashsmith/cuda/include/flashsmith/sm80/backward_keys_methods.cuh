// What C++ derives from the fields of Sm80KeyGradientsConfig: included inside the struct.

constexpr int owned() const { return B_c; }
constexpr int walked() const { return B_r; }
constexpr int gradients_held() const { return gradients == KeyGradients::kBOTH ? 2 : 1; }

// K stays (V too, unless dV alone is wanted); Q, dO and 8 bytes of statistics a row have stages.
constexpr int smem_bytes(int element_bytes = 2) const {
    const int keys = (gradients == KeyGradients::kDV ? 1 : 2) * B_c * d_head * element_bytes;
    return keys + stages() * B_r * (2 * d_head * element_bytes + 8);
}

#include "flashsmith/sm80/backward_methods.cuh"
