"""Kernels compiled ahead: by children into the cache, each once, errors told to who asks."""

import pytest
from tuning_process import CONFIGS

from flashsmith.base.errors import CompileError
from flashsmith.compile.compiler import CompileJob
from flashsmith.config.traits import ForwardTraits
from flashsmith.tuner import compiling
from flashsmith.tuner.compiling import compile_in_processes, evaluate
from flashsmith.tuner.executor import Answer

JOBS = [
    CompileJob(config, ForwardTraits(lse=lse), "sm_80")
    for config in CONFIGS[:4]
    for lse in (False, True)
]


@pytest.fixture
def pools(monkeypatch, tmp_path):
    """Pools that were opened: how many workers and jobs; children are played by this process."""
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "available_cores", lambda: 8)
    opened = []

    class Pool:
        def __init__(self, workers, evaluator):
            assert evaluator == "flashsmith.tuner.compiling:evaluate"
            self.workers = workers

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def run(self, jobs, seconds, on_reply):
            opened.append((self.workers, len(jobs)))
            for number, job in enumerate(jobs):
                on_reply(number, Answer(evaluate(job)))

    monkeypatch.setattr(compiling, "WorkerPool", Pool)
    return opened


def test_what_the_cache_lacks_is_compiled_by_children_and_once(pools):
    steps = []
    kernels = compile_in_processes(JOBS, lambda done, total: steps.append((done, total)))
    assert [kernel.name for kernel in kernels] == [j.config.kernel_name(j.traits) for j in JOBS]
    assert pools == [(2, 8)]
    assert steps == [(n, 8) for n in range(1, 9)]
    assert compile_in_processes(JOBS) == kernels
    assert len(pools) == 1


def test_a_few_kernels_are_not_worth_a_process(pools):
    assert len(compile_in_processes(JOBS[:3])) == 3
    assert pools == []


def test_what_does_not_compile_stands_where_its_kernel_would(pools, monkeypatch):
    bad = JOBS[1]

    def compile_kernel(config, traits, arch, **_):
        if (config, traits) == (bad.config, bad.traits):
            raise CompileError("x", "error: no", None)
        return real(config, traits, arch)

    real = compiling.compile_kernel
    monkeypatch.setattr(compiling, "compile_kernel", compile_kernel)
    monkeypatch.setattr("flashsmith.compile.compiler.compile_kernel", compile_kernel)
    found = compile_in_processes(JOBS)
    assert [isinstance(kernel, CompileError) for kernel in found] == [job is bad for job in JOBS]


def test_a_child_compiles_into_the_cache_of_its_parent(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "available_cores", lambda: 2)
    made = []
    monkeypatch.setattr(
        "flashsmith.compile.compiler._build", lambda *arguments: made.append(arguments)
    )
    kernels = compile_in_processes(JOBS[:6])
    assert made == []
    assert {kernel.arch for kernel in kernels} == {"sm_80"}
