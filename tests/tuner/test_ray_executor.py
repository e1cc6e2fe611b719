"""The Ray executor: the same outcomes as local workers, and a lost worker loses nothing."""

import signal
from types import SimpleNamespace

import pytest
from beside import HERE
from tuning_process import CONFIGS, tune

from flashsmith.base.errors import ArgumentError
from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.workers import ray_executor
from flashsmith.tuner.workers.executor import Answer, Died, Late
from flashsmith.tuner.workers.pool import WorkerPool

# Seconds in which a child of a machine that has much else to do has started and answered.
PATIENCE = 300
ray = pytest.importorskip("ray", reason="Ray is an optional extra")


@pytest.fixture(scope="module")
def cluster():
    """Two CPUs of this machine, as a cluster of their own."""
    before = signal.getsignal(signal.SIGTERM)
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20
    )
    yield lambda evaluator: ray_executor.RayExecutor(
        workers=2, needs_gpu=False, evaluator=evaluator, environment=HERE
    )
    ray.shutdown()
    signal.signal(signal.SIGTERM, before)


def test_what_ends_a_process_does_so_again_once_the_cluster_is_left(monkeypatch):
    def connect(**_):
        signal.signal(signal.SIGTERM, lambda *_: None)  # as Ray does, with a handler of its own

    actors = SimpleNamespace(remote=lambda *_: "an actor")
    joined = SimpleNamespace(
        is_initialized=lambda: False,
        init=connect,
        remote=lambda **_: lambda _: actors,
        kill=lambda _: None,
        shutdown=lambda: None,
    )
    monkeypatch.setattr(ray_executor, "_import_ray", lambda: joined)
    before = signal.getsignal(signal.SIGTERM)
    with ray_executor.RayExecutor(workers=1):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def outcomes(results):
    return {r.candidate.config: (r.measurement.outcome, r.is_winner) for r in results}


def test_outcomes_are_those_of_local_workers_when_a_worker_is_killed_midway(cluster, tmp_path):
    answered = []

    class KillsOne:
        """Kills the first actor after ten answers, in the middle of the screening."""

        def run(self, jobs, seconds, on_reply):
            def counted(number, reply):
                answered.append(number)
                if len(answered) == 10:
                    ray.kill(pool._actors[0], no_restart=True)
                on_reply(number, reply)

            pool.run(jobs, seconds, counted)

    with ResultStore(tmp_path / "ray.sqlite") as store, cluster("quick:evaluate") as pool:
        far, measured = tune(store, KillsOne())
        assert len([m for m in store.all() if m.key.protocol == "screen"]) == len(CONFIGS)
    with (
        ResultStore(tmp_path / "local.sqlite") as store,
        WorkerPool(2, "quick:evaluate", [HERE] * 2) as local,
    ):
        near, measured_locally = tune(store, local)
    assert len(answered) > 10
    assert measured == measured_locally
    assert outcomes(far) == outcomes(near)


def test_a_kernel_that_kills_its_child_is_an_answer_and_no_lost_worker(cluster):
    replies, after = {}, {}
    jobs = [{"do": do} for do in ("work", "abort", "work")]
    with cluster("answering:evaluate") as pool:
        before = list(pool._actors)
        pool.run(jobs, PATIENCE, replies.__setitem__)
        pool.run([{"do": "hang"}], 0.5, lambda _, reply: after.update(hang=reply))
        pool.run([{"do": "work"}], PATIENCE, lambda _, reply: after.update(work=reply))
        assert pool._actors == before
    assert [type(replies[n]) for n in range(3)] == [Answer, Died, Answer]
    assert after["hang"] == Late(0.5)
    assert isinstance(after["work"], Answer)


def test_a_job_that_loses_every_worker_is_held_to_be_the_cause(cluster):
    replies = {}
    with cluster("answering:evaluate") as pool:
        pool.run([{"do": "lose the machine"}], PATIENCE, replies.__setitem__)
    assert isinstance(replies[0], Died)
    assert "3 workers were lost" in replies[0].cause


class NoCluster:
    """Ray as it is where no cluster answers, or where one has no GPU."""

    def __init__(self, answers):
        self.answers = answers

    def is_initialized(self):
        return False

    def init(self, address, **_):
        if not self.answers:
            raise ConnectionError(f"nobody at {address}")

    def remote(self, **_):
        return lambda kind: kind

    def cluster_resources(self):
        return {"CPU": 64.0}


@pytest.mark.parametrize(
    ("answers", "says"),
    [(False, r"--address is 'far:1', where no Ray cluster.*ray start"), (True, "has no GPU")],
)
def test_a_cluster_that_cannot_help_is_refused(monkeypatch, answers, says):
    monkeypatch.setattr(ray_executor, "_import_ray", lambda: NoCluster(answers))
    with pytest.raises(ArgumentError, match=says):
        ray_executor.RayExecutor("far:1")
