// S = Q K^T of one warp: its rows of Q times a step of K, in groups of fragment loads.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/sm80/static_config.cuh"

namespace flashsmith::sm80 {

// All of a warp's Q in registers, read once; empty where Q is read again for every block.
template <class Kernel>
struct HeldQ {
    static constexpr int kSpans = Kernel::kQInRegisters ? Kernel::kDSpans : 1;
    Fragments<Kernel::kRowTiles> at[kSpans];

    FS_DEVICE void read(const QReader<Kernel>& reader) {
        if constexpr (Kernel::kQInRegisters) {
            FS_UNROLL
            for (int span = 0; span < kSpans; ++span) {
                FS_UNROLL
                for (int i = 0; i < Kernel::kRowTiles; ++i) reader.read(at[span].at[i], i, span);
            }
        }
    }
};

// The operands of one group of spans along d_head.
template <class Kernel>
struct QKOperands {
    static constexpr int kSpans = Kernel::QKGroups::kGroupSpans;
    Fragments<Kernel::kRowTiles> q[kSpans];
    Fragments<Kernel::kStepSpans> k[kSpans];

    FS_DEVICE void read(const QReader<Kernel>& q_reader, const KReader<Kernel>& k_reader,
                        int group) {
        FS_UNROLL
        for (int span = 0; span < kSpans; ++span) {
            if constexpr (!Kernel::kQInRegisters) {
                FS_UNROLL
                for (int i = 0; i < Kernel::kRowTiles; ++i) {
                    q_reader.read(q[span].at[i], i, group * kSpans + span);
                }
            }
            FS_UNROLL
            for (int n = 0; n < Kernel::kStepSpans; ++n) {
                k_reader.read(k[span].at[n], n, group * kSpans + span);
            }
        }
    }
};

template <class Kernel>
FS_DEVICE void multiply_qk_group(typename Kernel::S& s, const HeldQ<Kernel>& held,
                                 const QKOperands<Kernel>& operands, int group) {
    constexpr int kSpans = QKOperands<Kernel>::kSpans;
    FS_UNROLL
    for (int span = 0; span < kSpans; ++span) {
        const auto& q = Kernel::kQInRegisters ? held.at[group * kSpans + span] : operands.q[span];
        FS_UNROLL
        for (int n = 0; n < Kernel::kStepSpans; ++n) {
            const auto& k = operands.k[span].at[n];
            FS_UNROLL
            for (int i = 0; i < Kernel::kRowTiles; ++i) {
                FS_UNROLL
                for (int half = 0; half < 2; ++half) {
                    float (&d)[4] = s.at[i][2 * n + half];
                    ptx::mma_m16n8k16<Kernel::kDType>(d, q.at[i], k + 2 * half, d);
                }
            }
        }
    }
}

// A warp barrier ends each group: ptxas moves no ldmatrix across it, so what the configuration says
// about groups and buffers is what the machine code does.
template <class Kernel>
FS_DEVICE void multiply_qk(typename Kernel::S& s, const HeldQ<Kernel>& held,
                           const QReader<Kernel>& q_reader, const KReader<Kernel>& k_reader) {
    using Groups = typename Kernel::QKGroups;
    QKOperands<Kernel> operands[Groups::kStages];
    s.clear();
    operands[0].read(q_reader, k_reader, 0);
    FS_UNROLL
    for (int group = 0; group < Groups::kGroups; ++group) {
        const bool more = group + 1 < Groups::kGroups;
        if (Groups::kStages == 2 && more) {
            operands[(group + 1) % 2].read(q_reader, k_reader, group + 1);
        }
        multiply_qk_group<Kernel>(s, held, operands[group % Groups::kStages], group);
        if (more) ptx::bar_warp_sync();
        if (Groups::kStages == 1 && more) operands[0].read(q_reader, k_reader, group + 1);
    }
}

}  // namespace flashsmith::sm80
