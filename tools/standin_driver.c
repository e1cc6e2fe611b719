// A CUDA driver of one H200 that does nothing: what is left of a call is the host's own work.
//
//     cc -O2 -shared -fPIC tools/standin_driver.c -o FILE
//
// Built by race_host.py --stand-in.
#include <stdlib.h>
#include <string.h>

static void* const kContext = (void*)0x1000;

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* out) { return *out = 13000, 0; }
int cuDeviceGetCount(int* out) { return *out = 1, 0; }
int cuDeviceGet(int* out, int ordinal) { return *out = ordinal, 0; }
int cuDeviceGetName(char* out, int size, int gpu) { return strncpy(out, "NVIDIA H200", size), 0; }

// SMs, and the two numbers of the compute capability.
int cuDeviceGetAttribute(int* out, int which, int gpu) {
    return *out = which == 16 ? 132 : which == 75 ? 9 : 0, 0;
}

int cuDevicePrimaryCtxRetain(void** out, int gpu) { return *out = kContext, 0; }
int cuCtxGetCurrent(void** out) { return *out = kContext, 0; }
int cuCtxGetDevice(int* out) { return *out = 0, 0; }
int cuCtxPushCurrent_v2(void* context) { return 0; }
int cuCtxPopCurrent_v2(void** out) { return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) { return 0; }
int cuMemAlloc_v2(void** out, size_t bytes) { return posix_memalign(out, 256, bytes); }
int cuMemFree_v2(void* at) { return 0; }
int cuMemsetD32Async(void* at, unsigned word, size_t words, void* stream) { return 0; }
int cuModuleLoadData(void** out, const void* image) { return *out = (void*)1, 0; }
int cuModuleGetFunction(void** out, void* module, const char* name) { return *out = (void*)1, 0; }
int cuFuncSetAttribute(void* function, int which, int value) { return 0; }
int cuTensorMapEncodeTiled(void* out) { return 0; }
int cuStreamCreate(void** out, unsigned flags) { return *out = (void*)1, 0; }
int cuStreamSynchronize(void* stream) { return 0; }
int cuStreamDestroy_v2(void* stream) { return 0; }
int cuStreamIsCapturing(void* stream, int* out) { return *out = 0, 0; }
int cuLaunchKernel(void* function) { return 0; }
int cuLaunchKernelEx(void* config) { return 0; }
