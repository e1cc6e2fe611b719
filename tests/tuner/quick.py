"""An evaluator for tests: a time for each job, made up from its text, and a log of what it did."""

import hashlib
import os
import time
from pathlib import Path

# A file that gets a line for each job that was begun; tests find out what was measured twice.
LOG = os.environ.get("QUICK_LOG", "")
SECONDS = float(os.environ.get("QUICK_SECONDS", "0"))


def number(text):
    return int(hashlib.sha256(text.encode()).hexdigest()[:4], 16)


def evaluate(job):
    if job["kind"] == "count":
        return {}
    if job["kind"] == "gate":
        return {"outcome": "Verified", "fingerprint": ""}
    if job["kind"] == "race":
        timed = [timing(config, job) for config in job["configs"]]
        return {"timed": timed, "control": 1.0, "void": False}
    time.sleep(SECONDS)
    if LOG:
        with Path(LOG).open("a", encoding="utf-8") as log:
            log.write(f"{job['config']}\n")
    return {"outcome": "Timed", **timing(job["config"], job)}


def timing(config, job):
    us = 100.0 + number(config) / 100
    bits = "b64" if "opt_softmax" in config else "a64"
    return {"median_us": us, "p20_us": us, "p80_us": us, "rounds": 5, "fingerprint": bits}
