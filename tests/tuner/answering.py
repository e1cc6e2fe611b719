"""An evaluator for tests of the worker pool: does to its process what the job says."""

import os
import signal
import sys
import time


def evaluate(job):
    if job["do"] == "abort":
        os.abort()
    if job["do"] == "exit":
        raise SystemExit("no GPU left")
    if job["do"] == "hang":
        time.sleep(1000)
    if job["do"] == "ctrl-c":
        os.kill(os.getpid(), signal.SIGINT)
    if job["do"] == "lose the machine":
        os.kill(os.getppid(), signal.SIGKILL)
    if job["do"] == "print":
        sys.stdout.write("noise that is no answer\n")
    return {"pid": os.getpid(), "do": job["do"], "retire": job["do"] == "retire"}
