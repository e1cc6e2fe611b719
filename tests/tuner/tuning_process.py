"""A whole tuning run in a process of its own, on made-up times: what tests kill.

python tuning_process.py STORE
"""

import sys
from pathlib import Path

from beside import HERE

from flashsmith.base.dtypes import DType
from flashsmith.kernels import get_kernel_configs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.run.candidates import Candidate
from flashsmith.tuner.run.ranking import tune_problem
from flashsmith.tuner.run.target import Target
from flashsmith.tuner.run.tuner import Tuner
from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.workers.pool import WorkerPool

TARGET = Target("cuda", "a GPU of tests", "sm_90a", "1", "nvrtc", 132)
PROBLEM = AttentionProblem(1, 3, 3, 512, 512, 128, DType.BF16)
CONFIGS = [c for c in get_kernel_configs("tune") if c.dtype is DType.BF16]
CANDIDATES = [Candidate(config, PROBLEM, None) for config in CONFIGS]


def tune(store, pool):
    """The results, best first, and how many were measured by this run."""
    tuner = Tuner(TARGET, store, pool, second_opinion=lambda config: "")
    results = tune_problem(tuner, CANDIDATES, tuner.screen(CANDIDATES))
    return results, tuner.measured_now


if __name__ == "__main__":
    with (
        ResultStore(Path(sys.argv[1])) as opened,
        WorkerPool(2, "quick:evaluate", [HERE] * 2) as workers,
    ):
        tune(opened, workers)
