// What C++ derives from the fields of Sm80QueryGradientsConfig: included inside the struct.

constexpr int owned() const { return B_r; }
constexpr int walked() const { return B_c; }
constexpr int gradients_held() const { return 1; }

// Q and dO stay; K and V have stages.
constexpr int smem_bytes(int element_bytes = 2) const {
    return 2 * (B_r + stages() * B_c) * d_head * element_bytes;
}

#include "flashsmith/sm80/backward_methods.cuh"
