// Prints random points of NVIDIA's own occupancy calculator, for tests/arch to compare with.
//
// Host code only. With the header of the nvidia-cuda-runtime wheel or of a toolkit:
//   g++ -std=c++17 -I <folder of cuda_occupancy.h> occupancy_points.cpp -o points
//   ./points "<name and version of the package the header is from>" > occupancy_points.csv
#include <cstdio>
#include <random>

#include "cuda_occupancy.h"

struct Device {
    const char* name;
    int major, minor;
    int max_threads_per_sm;
    size_t smem_per_sm, smem_per_block_optin;
};

// As cudaGetDeviceProperties reports them.
static const Device kDevices[] = {
    {"sm_80", 8, 0, 2048, 167936, 166912},    {"sm_86", 8, 6, 1536, 102400, 101376},
    {"sm_89", 8, 9, 1536, 102400, 101376},    {"sm_90a", 9, 0, 2048, 233472, 232448},
    {"sm_100a", 10, 0, 2048, 233472, 232448}, {"sm_120", 12, 0, 1536, 102400, 101376},
};

static cudaOccDeviceProp properties_of(const Device& device) {
    cudaOccDeviceProp properties;
    properties.computeMajor = device.major;
    properties.computeMinor = device.minor;
    properties.maxThreadsPerBlock = 1024;
    properties.maxThreadsPerMultiprocessor = device.max_threads_per_sm;
    properties.regsPerBlock = 65536;
    properties.regsPerMultiprocessor = 65536;
    properties.warpSize = 32;
    properties.sharedMemPerBlock = 49152;
    properties.sharedMemPerMultiprocessor = device.smem_per_sm;
    properties.numSms = 1;
    properties.sharedMemPerBlockOptin = device.smem_per_block_optin;
    properties.reservedSharedMemPerBlock = 1024;
    return properties;
}

int main(int argc, char** argv) {
    std::mt19937 random(20261115);
    std::printf("# cuda_occupancy.h of %s\n", argc > 1 ? argv[1] : "an unnamed package");
    std::printf("arch,threads,registers,smem_bytes,barriers,blocks,limits\n");
    for (int i = 0; i < 2000; ++i) {
        const Device& device = kDevices[i % 6];
        // Half of the draws are small, so that every limit binds now and then.
        const int threads = static_cast<int>(random() % (random() % 2 ? 1056 : 192)) + 1;
        const int registers = static_cast<int>(random() % (random() % 2 ? 256 : 64));
        const size_t smem = random() % (random() % 2 ? device.smem_per_block_optin + 2048 : 16384);
        const int barriers = static_cast<int>(random() % (random() % 2 ? 17 : 3));
        cudaOccFuncAttributes attributes;
        attributes.maxThreadsPerBlock = 1024;
        attributes.numRegs = registers;
        attributes.sharedSizeBytes = 0;
        attributes.partitionedGCConfig = PARTITIONED_GC_OFF;
        attributes.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        attributes.maxDynamicSharedSizeBytes = device.smem_per_block_optin;
        attributes.numBlockBarriers = barriers;
        cudaOccDeviceState state;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result;
        const cudaOccDeviceProp properties = properties_of(device);
        const cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(
            &result, &properties, &attributes, &state, threads, smem);
        if (error != CUDA_OCC_SUCCESS) return 1;
        std::printf("%s,%d,%d,%zu,%d,%d,%u\n", device.name, threads, registers, smem, barriers,
                    result.activeBlocksPerMultiprocessor, result.limitingFactors);
    }
    return 0;
}
