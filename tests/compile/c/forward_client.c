/* A C program that runs one forward call through libflashsmith, from a file into a file.
 *
 * in:  nine int32 (batch, heads, kv_heads, q_len, k_len, d_head, causal, diagonal, with lse), then
 *      q, k and v as contiguous (batch, length, heads, d_head) arrays of 16-bit elements
 * out: o in the same form, then the lse as float32 if it was asked for
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "flashsmith.h"

static void check(int good, const char* what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, flashsmith_last_error());
    exit(1);
}

static flashsmith_tensor tensor(void* data, int64_t length, int64_t heads, int64_t d_head) {
    const flashsmith_tensor made = {data, length * heads * d_head, heads * d_head, d_head};
    return made;
}

static void* on_gpu(size_t bytes, FILE* in) {
    void* host = calloc(1, bytes);
    void* device = NULL;
    if (in != NULL) check(fread(host, 1, bytes, in) == bytes, "reading a tensor");
    check(cudaMalloc(&device, bytes) == cudaSuccess, "cudaMalloc");
    check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice) == cudaSuccess, "cudaMemcpy");
    free(host);
    return device;
}

static void from_gpu(void* device, size_t bytes, FILE* out) {
    void* host = malloc(bytes);
    check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost) == cudaSuccess, "cudaMemcpy");
    check(fwrite(host, 1, bytes, out) == bytes, "writing a tensor");
    free(host);
}

int main(int argc, char** argv) {
    check(argc == 4, "usage: forward_client SHORT_FORM IN OUT");
    flashsmith_config config = NULL;
    check(flashsmith_find(argv[1], &config) == FLASHSMITH_OK, "flashsmith_find");
    FILE* in = fopen(argv[2], "rb");
    FILE* out = fopen(argv[3], "wb");
    int32_t n[9];
    check(in != NULL && out != NULL && fread(n, sizeof n, 1, in) == 1, "opening the files");

    const size_t q_bytes = (size_t)2 * n[0] * n[1] * n[3] * n[5];
    const size_t k_bytes = (size_t)2 * n[0] * n[2] * n[4] * n[5];
    const size_t lse_bytes = (size_t)4 * n[0] * n[1] * n[3];
    flashsmith_forward_args args = {.batch = n[0], .heads = n[1], .kv_heads = n[2]};
    args.q_len = n[3];
    args.k_len = n[4];
    args.d_head = n[5];
    args.causal = n[6];
    args.diagonal = n[7];
    args.q = tensor(on_gpu(q_bytes, in), n[3], n[1], n[5]);
    args.k = tensor(on_gpu(k_bytes, in), n[4], n[2], n[5]);
    args.v = tensor(on_gpu(k_bytes, in), n[4], n[2], n[5]);
    args.o = tensor(on_gpu(q_bytes, NULL), n[3], n[1], n[5]);
    if (n[8]) args.lse = on_gpu(lse_bytes, NULL);

    check(flashsmith_forward(config, &args, NULL) == FLASHSMITH_OK, "flashsmith_forward");
    check(cudaDeviceSynchronize() == cudaSuccess, "cudaDeviceSynchronize");
    from_gpu(args.o.data, q_bytes, out);
    if (n[8]) from_gpu(args.lse, lse_bytes, out);
    return fclose(out);
}
