"""Workers: warm between jobs, replaced after a death, and never mistaken about an answer."""

import re
import threading
import time

import pytest
from beside import HERE

from flashsmith.tuner.workers.pool import Answer, Died, Late, Worker, WorkerPool

# Seconds in which a child of a machine that has much else to do has started and answered.
PATIENCE = 300


@pytest.fixture
def worker():
    made = Worker("answering:evaluate", HERE)
    yield made
    made.stop()


def test_a_worker_is_kept_warm(worker):
    first, second = worker.ask({"do": "work"}, PATIENCE), worker.ask({"do": "work"}, PATIENCE)
    assert first.data["pid"] == second.data["pid"]


def test_what_a_library_prints_is_no_answer(worker):
    assert worker.ask({"do": "print"}, PATIENCE).data["do"] == "print"


@pytest.mark.parametrize(
    ("do", "says"), [("abort", "signal SIGABRT"), ("exit", r"exit code 1\): no GPU left")]
)
def test_a_death_is_a_reply_and_the_next_job_runs(worker, do, says):
    reply = worker.ask({"do": do}, PATIENCE)
    assert isinstance(reply, Died)
    assert re.search(says, reply.cause)
    assert isinstance(worker.ask({"do": "work"}, PATIENCE), Answer)


def test_ctrl_c_in_the_terminal_is_no_death_of_a_worker(worker):
    assert isinstance(worker.ask({"do": "ctrl-c"}, 60), Answer)


def test_a_worker_that_was_closed_starts_no_child(worker):
    worker.close()
    assert isinstance(worker.ask({"do": "work"}, 60), Died)
    assert worker._process is None


def test_a_pool_that_is_left_early_drops_its_jobs_and_ends_its_workers():
    replies = []

    def leave(number, reply):
        replies.append(number)
        raise KeyboardInterrupt

    pool = WorkerPool(2, "answering:evaluate", [HERE] * 2)
    jobs = [{"do": "work"}, *[{"do": "hang"}] * 5]
    with pytest.raises(KeyboardInterrupt), pool:
        pool.run(jobs, 1000, leave)
    assert replies == [0]
    assert all(worker._process is None for worker in pool._workers)


def test_the_end_of_one_child_is_not_taken_for_the_next_ones(worker, monkeypatch):
    late = []
    monkeypatch.setattr(threading.Thread, "start", lambda reader: late.append(reader))
    worker._start()
    worker.stop()
    worker._start()
    for reader in late[:2]:  # the readers of the first child get to run only now
        reader.run()
    assert worker._lines.empty()


def test_a_hang_ends_when_its_time_is_up(worker):
    worker.ask({"do": "work"}, PATIENCE)
    assert worker.ask({"do": "hang"}, 0.5) == Late(0.5)
    assert isinstance(worker.ask({"do": "work"}, PATIENCE), Answer)


def test_a_worker_whose_device_broke_is_replaced(worker):
    pid = worker.ask({"do": "retire"}, PATIENCE).data["pid"]
    assert worker.ask({"do": "work"}, PATIENCE).data["pid"] != pid


def test_a_pool_replies_to_every_job_whatever_happens():
    does = ("work", "abort", "work", "exit", "print", "work")
    replies, late = {}, []
    with WorkerPool(2, "answering:evaluate", [HERE, HERE]) as pool:
        pool.run([{"do": do} for do in does], PATIENCE, replies.__setitem__)
        pool.run([{"do": "hang"}] * 2, 0.5, lambda _, reply: late.append(reply))
        pool.run([{"do": "work"}], PATIENCE, lambda _, reply: replies.update({6: reply}))
    kinds = [type(replies[number]) for number in range(7)]
    assert kinds == [Answer, Died, Answer, Died, Answer, Answer, Answer]
    assert late == [Late(0.5)] * 2


def test_a_worker_has_no_other_job_before_its_reply_is_kept(tmp_path):
    log = tmp_path / "log"
    jobs = [{"kind": "screen", "config": str(number)} for number in range(8)]
    begun = []

    def keep(number, reply):
        time.sleep(0.1)  # a slow store
        begun.append(len(log.read_text().splitlines()) - len(begun))

    with WorkerPool(2, "quick:evaluate", [{**HERE, "QUICK_LOG": str(log)}] * 2) as pool:
        pool.run(jobs, PATIENCE, keep)
    assert len(begun) == len(jobs)
    assert max(begun) <= 2
