"""Nsight Compute's output as text, and a program that stands in for it."""

import sys

COLUMNS = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC"),
    *("gpu__time_duration.sum", "launch__registers_per_thread", "lts__t_sector_hit_rate.pct"),
    *("sm__cycles_elapsed.max", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"),
)
UNITS = ("",) * 11 + ("ns", "register/thread", "%", "cycle", "%")
FA2 = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>, 0, 1>(Params)"
COMBINE = "void pytorch_flash::flash_fwd_splitkv_combine_kernel<Traits<128, 4>, 4>(Params)"


def line(values):
    return ",".join('"' + str(value).replace('"', '""') + '"' for value in values)


def log_of(kernels, units=UNITS, columns=COLUMNS):
    """A log as `ncu --csv --page raw` writes it; kernels are (name, duration)."""
    rows = [
        line(
            (
                *(
                    number,
                    4711,
                    "python3.12",
                    "127.0.0.1",
                    name,
                    1,
                    7,
                    "(128, 1, 1)",
                    "(4096, 1, 1)",
                ),
                *(0, "9.0", f"{duration:,}", 168, "93.25", f"{2 * duration:,}", "n/a"),
            )
        )
        for number, (name, duration) in enumerate(kernels)
    ]
    return "\n".join(
        (
            "==PROF== Connected to process 4711 (/usr/bin/python3.12)",
            '==PROF== Profiling "flashsmith_x": 0%....50%....100% - 2 passes',
            line(columns),
            line(units),
            *rows,
            "==PROF== Disconnected from process 4711",
            "",
        )
    )


# Writes notes and a table for the job it is given, as the real one and its child would.
FAKE_NCU = f"""#!{sys.executable}
import json, os, signal, subprocess, sys
from pathlib import Path
from flashsmith.bench.profile import REFERENCE, Job
from flashsmith.problem.needs import Needs
sys.path.insert(0, {str(__file__).rpartition("/")[0]!r})
from ncu_samples import COMBINE, FA2, log_of

arguments = sys.argv[1:]
metrics = arguments[arguments.index("--metrics") + 1].split(",")
here = Path(sys.argv[0]).parent
MODE, *rest = (here / "modes").read_text().split()
(here / "modes").write_text(" ".join(rest or [MODE]))
log = Path(arguments[arguments.index("--log-file") + 1])
if MODE == "permission":
    log.write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\\n")
    sys.exit(0)
if MODE == "crash":
    print("Traceback\\nflashsmith.base.errors.LaunchError: cuLaunchKernel", file=sys.stderr)
    sys.exit(1)
if MODE == "old" and len(metrics) > 4:
    print("==ERROR== Failed to find metric " + metrics[4])
    sys.exit(1)
(here / "arguments").write_text(json.dumps(arguments))
if MODE in ("nothing", "silence"):
    if MODE == "nothing":
        Path(arguments[-1]).write_text(json.dumps(dict(task=0, who="x", left_out="does not fit")))
    log.write_text("==WARNING== No kernels were profiled.\\n")
    sys.exit(0)
if MODE in ("hang", "stop"):
    started = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    (here / "pids").write_text(f"{{os.getpid()}} {{started.pid}}")
    Path(arguments[-1]).write_text("a launch\\nanother\\n")
    if MODE == "stop":
        os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
job, notes = Job.from_json(Path(arguments[-2]).read_text()), Path(arguments[-1])
lines, kernels = [], []
for number, task in enumerate(job.tasks):
    for _ in range(job.runs):
        if job.reference:
            lines.append(dict(task=number, who=REFERENCE, left_out=""))
            kernels += [(FA2, 3_000_000), (COMBINE, 1_000_000)]
        for place, config in enumerate(task.configs):
            lines.append(dict(task=number, who=config.short_form(), left_out=""))
            kernels.append((config.kernel_name(Needs()), 2_000_000 + 1000 * place))
lines.append(dict(task=0, who="(FP16, 128, 1): x", left_out="does not fit"))
notes.write_text("".join(json.dumps(one) + "\\n" for one in lines))
log.write_text(log_of(kernels))
"""
