#!/usr/bin/env bash
# Profiles the tuning set over lengths into profiles/autotune.csv, as the original script of this name.
set -euo pipefail
here=$(dirname "$0")
seq_lens="${seq_lens:-1024,2048,4096,8192,16384}"
mkdir -p profiles
KERNELS="${KERNELS:-tune}" "${PYTHON:-python3}" "$here/ncu_bench.py" --seq_lens="$seq_lens" --d_heads=128 --runs=1 --csv \
    > profiles/autotune.csv
