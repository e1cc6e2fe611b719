/* The C interface of libflashsmith: forward attention by kernels that were built ahead of time.
 *
 * A configuration is found by its short form, as `flashsmith configs` prints it:
 *
 *     flashsmith_config config;
 *     if (flashsmith_find("(FP16, 128, 64, 64, 4): async+...", &config) != FLASHSMITH_OK) {
 *         fprintf(stderr, "%s\n", flashsmith_last_error());
 *     }
 *     flashsmith_forward(config, &args, stream);
 *
 * Listing and finding need no GPU. Every function may be called from several threads at once.
 */
#ifndef FLASHSMITH_H
#define FLASHSMITH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLASHSMITH_API __attribute__((visibility("default")))

/* Changes when a struct or a function below does. */
#define FLASHSMITH_ABI 1

typedef enum flashsmith_status {
    FLASHSMITH_OK = 0,
    FLASHSMITH_NOT_REGISTERED = 1,   /* the library holds no kernel of that configuration */
    FLASHSMITH_INVALID_ARGUMENT = 2, /* a tensor, length or stride that no kernel can take */
    FLASHSMITH_CUDA_ERROR = 3        /* the CUDA runtime refused the launch */
} flashsmith_status;

/* One registered configuration; lives as long as the library. */
typedef const struct flashsmith_registered* flashsmith_config;

/* A 4-D tensor in GPU memory. Strides count elements, the one along d_head is 1; rows begin at
 * multiples of 16 bytes, so the address is a multiple of 16 and every stride of 8. */
typedef struct flashsmith_tensor {
    void* data;
    int64_t batch_stride;
    int64_t seq_stride;
    int64_t head_stride;
} flashsmith_tensor;

typedef struct flashsmith_forward_args {
    flashsmith_tensor q, k, v, o; /* elements of the configuration's type */
    float* lse;                   /* (batch, heads, q_len), contiguous; NULL: not wanted */
    int32_t batch;
    int32_t heads;
    int32_t kv_heads; /* divides heads */
    int32_t q_len;
    int32_t k_len;
    int32_t d_head;   /* a multiple of 8, at most the configuration's */
    int32_t causal;   /* not 0: row i sees key j when j <= i + diagonal */
    int32_t diagonal; /* k_len - q_len aligns bottom right, 0 top left */
    double scale;     /* of QK^T before the softmax; 0: 1 / sqrt(d_head) */
} flashsmith_forward_args;

/* FLASHSMITH_ABI of the library that is loaded. */
FLASHSMITH_API int flashsmith_abi(void);

/* How many configurations are registered, and the one at `index`; NULL past the end. */
FLASHSMITH_API size_t flashsmith_count(void);
FLASHSMITH_API flashsmith_config flashsmith_at(size_t index);

/* The short form of a configuration; NULL for NULL. */
FLASHSMITH_API const char* flashsmith_short_form(flashsmith_config config);

/* Finds a configuration by its short form; spaces do not matter. On failure `*config` is NULL. */
FLASHSMITH_API flashsmith_status flashsmith_find(const char* short_form, flashsmith_config* config);

/* Starts O = softmax(scale QK^T + mask) V on `stream` (a cudaStream_t; NULL: the default stream)
 * of the current device; returns before the GPU is done. */
FLASHSMITH_API flashsmith_status flashsmith_forward(flashsmith_config config,
                                                    const flashsmith_forward_args* args,
                                                    void* stream);

/* What a status means, in one sentence. */
FLASHSMITH_API const char* flashsmith_status_string(flashsmith_status status);

/* What the last failing call of this thread said: what was given, allowed, and what to do. */
FLASHSMITH_API const char* flashsmith_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* FLASHSMITH_H */
