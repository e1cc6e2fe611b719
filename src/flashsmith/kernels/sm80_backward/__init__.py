"""The backward kernels on mma.sync, from sm_80 on: deterministic, without atomics."""
