// The host side of libflashsmith: finds a configuration, checks a call, starts its kernel.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "flash_kernels.cuh"
#include "flashsmith.h"

using flashsmith::host::forward_kernels;
using flashsmith::host::ForwardCall;
using flashsmith::host::registered;

namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr int kStrideStep = 8;  // elements of one 16-byte access

thread_local std::string last_error;

flashsmith_status fail(flashsmith_status status, std::string message) {
    last_error = std::move(message);
    return status;
}

std::string without_spaces(const char* text) {
    std::string kept;
    std::copy_if(text, text + std::strlen(text), std::back_inserter(kept),
                 [](char c) { return c != ' ' && c != '\t' && c != '\n'; });
    return kept;
}

// Edits (insert, delete, replace) that turn one text into the other.
size_t distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0]++;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
        }
    }
    return row[b.size()];
}

const char* nearest_to(const std::string& wanted) {
    const auto* near = std::min_element(std::begin(registered), std::end(registered),
                                        [&](const auto& a, const auto& b) {
                                            return distance(without_spaces(a.short_form), wanted) <
                                                   distance(without_spaces(b.short_form), wanted);
                                        });
    return near->short_form;
}

std::string tensor_fault(const char* name, const flashsmith_tensor& tensor) {
    if (tensor.data == nullptr) return std::string(name) + ".data is NULL; give GPU memory.";
    const bool aligned = reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0;
    const bool in_step = tensor.batch_stride % kStrideStep == 0 &&
                         tensor.seq_stride % kStrideStep == 0 &&
                         tensor.head_stride % kStrideStep == 0;
    if (aligned && in_step) return "";
    return std::string(name) +
           ": its rows do not all begin at multiples of 16 bytes; align the address to 16 bytes "
           "and the strides to 8 elements.";
}

std::string lengths_fault(const flashsmith_forward_args& args, int d_head) {
    if (args.batch < 0 || args.q_len < 0 || args.k_len < 1) {
        return "batch is " + std::to_string(args.batch) + ", q_len " + std::to_string(args.q_len) +
               ", k_len " + std::to_string(args.k_len) +
               "; batch and q_len are at least 0, k_len at least 1; correct them.";
    }
    if (args.heads < 1 || args.kv_heads < 1 || args.heads % args.kv_heads != 0) {
        return "heads is " + std::to_string(args.heads) + " and kv_heads " +
               std::to_string(args.kv_heads) +
               "; query heads are a multiple of key heads, both at least 1; correct them.";
    }
    if (args.d_head < 1 || args.d_head > d_head || args.d_head % kStrideStep != 0) {
        return "d_head is " + std::to_string(args.d_head) +
               "; this kernel takes multiples of 8 up to " + std::to_string(d_head) +
               "; choose another configuration.";
    }
    if (!(args.scale >= 0) || !std::isfinite(args.scale)) {
        return "scale is not a finite number of at least 0; 0 means 1 / sqrt(d_head).";
    }
    return "";
}

std::string fault_of(const flashsmith_forward_args& args, int d_head) {
    const std::string lengths = lengths_fault(args, d_head);
    if (!lengths.empty()) return lengths;
    const std::pair<const char*, const flashsmith_tensor*> tensors[] = {
        {"q", &args.q}, {"k", &args.k}, {"v", &args.v}, {"o", &args.o}};
    for (const auto& [name, tensor] : tensors) {
        const std::string fault = tensor_fault(name, *tensor);
        if (!fault.empty()) return fault;
    }
    return "";
}

flashsmith::TensorArg tensor_arg(const flashsmith_tensor& tensor) {
    return {.address = reinterpret_cast<flashsmith::u64>(tensor.data),
            .batch_stride = tensor.batch_stride,
            .seq_stride = tensor.seq_stride,
            .head_stride = tensor.head_stride};
}

ForwardCall make_call(const flashsmith_forward_args& args) {
    // Past these bounds a diagonal masks nothing or everything; 32-bit row arithmetic stays exact.
    const int32_t diagonal = std::clamp(args.diagonal, -args.q_len, args.k_len);
    const double scale = args.scale != 0 ? args.scale : 1.0 / std::sqrt(double{args.d_head});
    return {.args = {.q = tensor_arg(args.q),
                     .k = tensor_arg(args.k),
                     .v = tensor_arg(args.v),
                     .o = tensor_arg(args.o),
                     .lse = args.lse,
                     .batch = args.batch,
                     .heads = args.heads,
                     .kv_heads = args.kv_heads,
                     .q_len = args.q_len,
                     .k_len = args.k_len,
                     .d_head = args.d_head,
                     .diagonal = diagonal,
                     .scale_log2 = static_cast<float>(scale * kLog2E)},
            .causal = args.causal != 0 && diagonal < args.k_len - 1};
}

}  // namespace

extern "C" {

int flashsmith_abi(void) { return FLASHSMITH_ABI; }

size_t flashsmith_count(void) { return std::size(registered); }

flashsmith_config flashsmith_at(size_t index) {
    return index < std::size(registered) ? &registered[index] : nullptr;
}

const char* flashsmith_short_form(flashsmith_config config) {
    return config == nullptr ? nullptr : config->short_form;
}

flashsmith_status flashsmith_find(const char* short_form, flashsmith_config* config) {
    if (short_form == nullptr || config == nullptr) {
        return fail(FLASHSMITH_INVALID_ARGUMENT,
                    "flashsmith_find: an argument is NULL; give both.");
    }
    const std::string wanted = without_spaces(short_form);
    for (const auto& entry : registered) {
        if (without_spaces(entry.short_form) == wanted) {
            *config = &entry;
            return FLASHSMITH_OK;
        }
    }
    *config = nullptr;
    return fail(FLASHSMITH_NOT_REGISTERED,
                std::string(short_form) + ": not registered; this library holds " +
                    std::to_string(std::size(registered)) + " configurations, the nearest is " +
                    nearest_to(wanted) + "; take that one or build it into the library.");
}

flashsmith_status flashsmith_forward(flashsmith_config config, const flashsmith_forward_args* args,
                                     void* stream) {
    if (config == nullptr || args == nullptr) {
        return fail(FLASHSMITH_INVALID_ARGUMENT,
                    "flashsmith_forward: config or args is NULL; find a configuration first.");
    }
    const std::string fault = fault_of(*args, config->config.d_head);
    if (!fault.empty()) return fail(FLASHSMITH_INVALID_ARGUMENT, fault);
    if (args->batch == 0 || args->q_len == 0) return FLASHSMITH_OK;
    const cudaError_t result =
        forward_kernels.at(config->config)(make_call(*args), static_cast<cudaStream_t>(stream));
    if (result == cudaSuccess) return FLASHSMITH_OK;
    return fail(FLASHSMITH_CUDA_ERROR, std::string(config->short_form) + ": the launch returned " +
                                           cudaGetErrorName(result) + " (" +
                                           cudaGetErrorString(result) + ").");
}

const char* flashsmith_status_string(flashsmith_status status) {
    switch (status) {
        case FLASHSMITH_OK:
            return "ok";
        case FLASHSMITH_NOT_REGISTERED:
            return "the library holds no kernel of that configuration";
        case FLASHSMITH_INVALID_ARGUMENT:
            return "an argument that no kernel can take";
        case FLASHSMITH_CUDA_ERROR:
            return "the CUDA runtime refused the launch";
    }
    return "no status of this library";
}

const char* flashsmith_last_error(void) { return last_error.c_str(); }

}  // extern "C"
