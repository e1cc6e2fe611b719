"""Tuning gradients: plans of several kernels are compiled, keyed, verified and chosen as one."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
from beside import HERE
from tuning_process import TARGET
from typer.testing import CliRunner

import flashsmith
from flashsmith.base.errors import ArgumentError, ConfigError
from flashsmith.cli.main import app
from flashsmith.compile.compiler import compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels.parse import parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.choose import shipped_kernels
from flashsmith.tuner.choose.choice import choose
from flashsmith.tuner.choose.measured import MeasuredTable
from flashsmith.tuner.run.candidates import competes, default_configs
from flashsmith.tuner.store.machine_code import code_of, jobs_of
from flashsmith.tuner.store.measurement import Measurement, MeasurementKey
from flashsmith.tuner.store.outcome import Timed
from flashsmith.tuner.store.stale import Standing, standings
from flashsmith.tuner.workers.pool import WorkerPool

SMALL = "bwd(BF16, 64): dkv_64_32_4+dq_64_32_4"
LARGE = "bwd(BF16, 64): dkv_64_64_4+dq_64_64_4+dkv_buffer+dq_buffer"
FREE = "hopper_bwd(BF16, 64): ds_2+turns+fold+early_dv+late_fences+unordered"
PROBLEM = AttentionProblem(1, 3, 1, 200, 200, 64, operation="backward")
GPU = "NVIDIA Test"


class MadeUp:
    """Machines whose GPU gives a time made up from a configuration's text."""

    @contextmanager
    def open(self):
        with WorkerPool(1, "quick:evaluate", [HERE]) as pool:
            yield TARGET, pool


def measured(config, problem=PROBLEM, code="", us=100.0):
    compiler = find_nvrtc().compiler
    key = MeasurementKey(GPU, "sm_90a", "580", compiler, code, config, problem, "final")
    return Measurement(key, Timed(us, us, us, 15, "f"), gate=True, environment={})


def test_what_takes_part_computes_the_operation_that_is_asked_for():
    backward = default_configs("sm_90a", "backward")
    of_mma = {"sm80_backward", "sm80_backward_sums"}
    assert {c.NAME for c in backward} == {*of_mma, "sm90_backward"}
    assert {c.OPERATION for c in default_configs("sm_90a")} == {"forward"}
    assert {c.NAME for c in default_configs("sm_86", "backward")} == of_mma
    small, free = parse_config(SMALL), parse_config(FREE)
    assert competes(small, PROBLEM, [small])
    assert not competes(small, replace(PROBLEM, operation="forward"), [small])
    assert not competes(free, PROBLEM, [free])
    assert competes(free, replace(PROBLEM, deterministic=False), [free])


def test_the_pick_of_a_plan_of_several_kernels_is_kept_under_all_of_their_code(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("flashsmith.tuner.run.tuner.compile_for_screening", lambda *a: None)
    monkeypatch.setattr("flashsmith.tuner.run.tuner.compile_for_gate", lambda *a: None)
    configs = [parse_config(SMALL), parse_config(LARGE)]
    found = flashsmith.tune(PROBLEM, configs, machines=MadeUp(), store=tmp_path / "r.sqlite")
    results = {r.candidate.config: r.measurement.key for r in found.results[PROBLEM]}
    for config, key in results.items():
        kernels = compile_many(list(jobs_of(config, PROBLEM, TARGET.arch)))
        assert len(kernels) == 3  # delta, dK and dV, dQ
        assert key.code == code_of(kernels)
        assert key.code not in {kernel.code for kernel in kernels}
    assert found.picks[PROBLEM] in configs
    with pytest.raises(ConfigError, match="is for a forward pass of BF16 and d_head 64"):
        flashsmith.tune(replace(PROBLEM, operation="forward"), configs, machines=MadeUp())


def test_one_kernel_of_the_plan_with_other_code_makes_a_row_stale():
    kernels = compile_many(list(jobs_of(parse_config(SMALL), PROBLEM, "sm_90a")))
    now = measured(SMALL, code=code_of(kernels))
    other = measured(SMALL, code=code_of([*kernels[:2], kernels[0]]))
    found = [standing for _, standing in standings([now, other])]
    assert found == [Standing.CURRENT, Standing.STALE]


def test_a_measured_backward_is_chosen_and_says_nothing_of_forward_passes():
    table = MeasuredTable("measured on this machine", lambda: [measured(SMALL)])
    choice = choose(PROBLEM, "sm_90a", gpu=GPU, measurements=[table])
    assert (choice.config, choice.source) == (parse_config(SMALL), "measured on this machine")
    forward = replace(PROBLEM, operation="forward")
    assert choose(forward, "sm_90a", gpu=GPU, measurements=[table]).source == "rule"
    free = MeasuredTable("measured on this machine", lambda: [measured(FREE, us=1.0)])
    assert choose(PROBLEM, "sm_90a", gpu=GPU, measurements=[free]).config.repeats_bits


def test_all_kernels_of_a_shipped_backward_come_compiled():
    names = {job.config.NAME for job in shipped_kernels._jobs([measured(SMALL)])}
    assert names == {"sm80_backward_delta", "sm80_backward_dkv", "sm80_backward_dq"}


def test_the_verb_tunes_what_the_kernels_of_a_key_compute(tmp_path):
    common = ["--device", "emulator", "--seq-lens", "200", "--d-heads", "64", "--heads", "3"]
    page = ["--store", str(tmp_path / "r.sqlite"), "-o", str(tmp_path / "p.html"), "--json"]
    ran = CliRunner().invoke(app, ["tune", SMALL, *common, *page])
    assert ran.exit_code == 0
    (row,) = json.loads(ran.stdout)
    assert row["problem"].startswith("backward, ")
    assert row["outcome"] == "Verified"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bwd", "--op", "forward"], "the kernels of bwd compute the backward pass"),
        (["--op", "sideways"], "--op is 'sideways'; it must be forward or backward"),
    ],
)
def test_an_operation_that_cannot_be_is_refused(arguments, message):
    ran = CliRunner().invoke(app, ["tune", *arguments, "--device", "emulator"])
    assert ran.exit_code != 0
    assert isinstance(ran.exception, ArgumentError)
    assert message in str(ran.exception)
