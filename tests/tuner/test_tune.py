"""A tuning run: it ends whatever its kernels do, resumes, and stays in a numeric class."""

from dataclasses import replace

import pytest
from beside import HERE
from planted_faults import CONFIGS, FAULTS

from flashsmith.base.dtypes import DType
from flashsmith.kernels import resolve_key
from flashsmith.kernels.plans import kernels_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.run.candidates import _checking_jobs, compiled_candidates, pairs_of
from flashsmith.tuner.run.ranking import tune_problem
from flashsmith.tuner.run.target import Target, target_here
from flashsmith.tuner.run.tuner import Tuner
from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.store.outcome import DidNotRun, Timed, TimedOut, Verified, Wrong
from flashsmith.tuner.workers.pool import WorkerPool

PROBLEM = AttentionProblem(1, 3, 3, 512, 512, 128, DType.BF16)
# Far above what a sound kernel takes: on a GPU, and emulated on a busy machine.
HANG_SECONDS = {"cuda": 15.0, "emulator": 30.0}


@pytest.fixture
def target(device):
    return target_here("cuda" if device.name != "emulator" else "emulator")


def run(target, path, configs, evaluator="planted:evaluate", model=None):
    candidates = compiled_candidates(pairs_of(configs, [PROBLEM]), target)
    workers = 1 if target.can_time else 2
    with ResultStore(path) as store, WorkerPool(workers, evaluator, [HERE] * workers) as pool:
        tuner = Tuner(target, store, pool, job_seconds=HANG_SECONDS[target.device])
        screened = tuner.screen(candidates)
        return tuner, tune_problem(tuner, candidates, screened, model)


@pytest.mark.parametrize("key", ["tune", "hopper"])
def test_a_candidate_takes_three_kernels_in_all(key):
    """Its own, and two to be checked by; one of these also tells its bits."""
    config = next(c for c in resolve_key(key) if (c.dtype, c.d_head) == (DType.BF16, 128))
    target = Target("emulator", "emulator", "sm_90a", "", "nvrtc", 4)
    checked = {(job.config, job.needs) for job in _checking_jobs(config, PROBLEM, target)}
    own = set(kernels_of(config, replace(PROBLEM, q_len=5760, k_len=5760)))
    assert len(own) == 1
    assert len(own | checked) == 3


def test_five_planted_faults_are_labelled_and_all_others_measured(target, tmp_path):
    tuner, results = run(target, tmp_path / "r.sqlite", CONFIGS)
    outcomes = {r.candidate.config: r.measurement.outcome for r in results}
    assert set(outcomes) == set(CONFIGS)
    expected = {
        "trap": DidNotRun,
        "hang": TimedOut if target.can_time else DidNotRun,  # the emulator sees that it hangs
        "out of bounds": DidNotRun,
        "wrong": Wrong,
        "crash": DidNotRun,
    }
    for config, fault in FAULTS.items():
        assert isinstance(outcomes[config], expected[fault]), (fault, outcomes[config])
    sound = [outcomes[c] for c in CONFIGS if c not in FAULTS]
    assert all(isinstance(o, Timed if target.can_time else Verified) for o in sound)
    by_fault = {fault: outcomes[config] for config, fault in FAULTS.items()}
    assert "SIGABRT" in by_fault["crash"].reason
    # The second run finds everything in the store.
    tuner, again = run(target, tmp_path / "r.sqlite", CONFIGS, evaluator="planted:missing")
    assert tuner.measured_now == 0
    assert {r.candidate.config: r.measurement.outcome for r in again} == outcomes


def test_a_same_bits_run_passes_over_other_classes(target, tmp_path):
    sound = [config for config in CONFIGS if config not in FAULTS]
    other = sound[0].replace(optimized_softmax=not sound[0].optimized_softmax)
    _, results = run(target, tmp_path / "r.sqlite", [*sound, other], model=sound[0])
    over = {r.candidate.config: r.passed_over for r in results}
    assert over[sound[0]] == ""
    assert over[other] == "other bits"
