// A CUDA driver that writes down what it was given, read at the offsets of cuda.h (12.0 and later).
#include <stdint.h>
#include <string.h>
typedef struct {
    unsigned x, y, z, bx, by, bz, smem;
    void* stream;
    void* attrs;
    unsigned n;
} Config;
typedef struct {
    int id;
    char pad[4];
    union {
        char room[64];
        struct {
            unsigned x, y, z;
        } dim;
    } v;
} Attr;
uint64_t seen[64];
int fail;
uint64_t current;
int cuInit(unsigned flags) { return 0; }
int cuGetErrorName(int code, const char** out) {
    *out = code == 209   ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
           : code == 200 ? "CUDA_ERROR_INVALID_IMAGE"
                         : 0;
    return 0;
}
int cuDriverGetVersion(int* out) {
    *out = 12080;
    return 0;
}
int cuCtxGetCurrent(uint64_t* out) {
    *out = current;
    return 0;
}
int cuCtxPushCurrent_v2(uint64_t context) {
    seen[60] = context;
    return 0;
}
int cuCtxPopCurrent_v2(uint64_t* out) {
    seen[61]++;
    *out = 0;
    return 0;
}
int cuModuleLoadData(void** out, const void* image) { return fail; }
int cuLaunchKernel(uint64_t f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                   unsigned bz, unsigned smem, uint64_t stream, void** params, void** extra) {
    seen[0] = f;
    seen[1] = x;
    seen[2] = y;
    seen[3] = z;
    seen[4] = bx;
    seen[5] = by;
    seen[6] = bz;
    seen[7] = smem;
    seen[8] = stream;
    seen[9] = extra == 0;
    memcpy(&seen[10], params[0], 16);
    memcpy(&seen[12], params[1], 4);
    return fail;
}
int cuLaunchKernelEx(const Config* c, uint64_t f, void** params, void** extra) {
    Attr* attr = (Attr*)c->attrs;
    seen[0] = f;
    seen[1] = c->x;
    seen[2] = c->y;
    seen[3] = c->z;
    seen[4] = c->bx;
    seen[5] = c->by;
    seen[6] = c->bz;
    seen[7] = c->smem;
    seen[8] = (uint64_t)c->stream;
    seen[9] = c->n;
    memcpy(&seen[10], params[0], 16);
    seen[13] = attr->id;
    seen[14] = attr->v.dim.x;
    seen[15] = attr->v.dim.y;
    seen[16] = attr->v.dim.z;
    return fail;
}
int cuTensorMapEncodeTiled(char* map, int type, unsigned rank, uint64_t address,
                           const uint64_t* dims, const uint64_t* strides, const uint32_t* box,
                           const uint32_t* steps, int interleave, int swizzle, int promotion,
                           int fill) {
    seen[0] = (uint64_t)map % 64;
    seen[1] = type;
    seen[2] = rank;
    seen[3] = address;
    for (unsigned i = 0; i < rank; ++i) {
        seen[10 + i] = dims[i];
        seen[20 + i] = box[i];
        seen[25 + i] = steps[i];
    }
    for (unsigned i = 0; i + 1 < rank; ++i) seen[15 + i] = strides[i];
    seen[4] = interleave;
    seen[5] = swizzle;
    seen[6] = promotion;
    seen[7] = fill;
    memset(map, 0x5A, 128);
    return fail;
}
