"""A tuner killed at any moment loses nothing that it kept, and measures nothing twice."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tuning_process import CONFIGS, tune

from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.workers.executor import Answer

PROGRAM = Path(__file__).parent / "tuning_process.py"
KILLS = 20
WORKERS = 2


class NoWork:
    """An executor that must not be asked to screen: everything is in the store."""

    def run(self, jobs, seconds, on_reply):
        assert not [job for job in jobs if job["kind"] == "screen"]
        for number, _ in enumerate(jobs):
            on_reply(number, Answer({"outcome": "Verified", "fingerprint": ""}))


def start(store, log, seconds):
    environment = {**os.environ, "QUICK_LOG": str(log), "QUICK_SECONDS": str(seconds)}
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(store)], env=environment, stderr=subprocess.PIPE
    )


def jobs_begun(log):
    return len(log.read_text().splitlines())


def rows(store):
    if not store.exists():
        return {}
    with ResultStore(store) as opened:
        return {m.key: m for m in opened.all()}


def test_twenty_kills_lose_nothing_and_nothing_is_measured_twice(tmp_path):
    store, log = tmp_path / "r.sqlite", tmp_path / "log"
    log.touch()
    moments = random.Random(7)
    kept = {}
    for _ in range(KILLS):
        tuner = start(store, log, seconds=0.02)
        # From the moment work begins; a few land before it, or in the races.
        begun, target = time.monotonic(), jobs_begun(log) + moments.choice((0, 1, 1, 2, 2))
        while jobs_begun(log) < target and time.monotonic() < begun + 20:
            if tuner.poll() is not None:
                break
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.03))
        tuner.send_signal(signal.SIGKILL)
        tuner.wait()
        now = rows(store)
        assert {key: now[key] for key in kept} == kept
        kept = now
    assert kept
    last = start(store, log, seconds=0)
    assert last.wait() == 0, last.stderr.read().decode()
    screened = [key for key in rows(store) if key.protocol == "screen"]
    assert sorted(key.config for key in screened) == sorted(c.short_form() for c in CONFIGS)
    # What a kill may cost is the jobs that workers had in hand: they were begun and never kept.
    begun = Counter(log.read_text().splitlines())
    assert sum(begun.values()) <= len(CONFIGS) + KILLS * WORKERS
    assert set(begun) == {c.short_form() for c in CONFIGS}
    with ResultStore(store) as opened:
        results, measured = tune(opened, NoWork())
    assert measured == 0
    assert results[0].is_winner


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_two_tuners_on_one_store_keep_one_row_a_measurement(tmp_path, seconds):
    store, log = tmp_path / "r.sqlite", tmp_path / "log"
    both = [start(store, log, seconds) for _ in range(2)]
    for tuner in both:
        assert tuner.wait() == 0, tuner.stderr.read().decode()
    screened = [m for m in rows(store).values() if m.key.protocol == "screen"]
    assert len(screened) == len(CONFIGS)
    with ResultStore(store) as opened:
        results, measured = tune(opened, NoWork())
    assert measured == 0
    assert results[0].measurement.key.protocol == "final"
