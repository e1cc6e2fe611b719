"""Races the host time of calls: another version of the sources against this one, in turns.

    python tools/race_host.py OTHER_SRC [--stand-in] [--rounds N] [--calls N] -o FILE

OTHER_SRC is the folder `src` of the other version; its parent's name is written into the records
(`git archive 715865e src | tar -x -C out/715865e`). Three processes live at the same time: one of
the other version and two of this one, the second being the control. A round asks each for every
call in turn; ratios are of one round. First calls (`--parts first`, 20 s on a GPU machine) are of
processes that have imported torch and nothing of flashsmith, in turns, each version with a kernel
cache of its own; the import counts. With `--stand-in` no GPU is needed: a driver that does nothing
takes its place (docs/measuring.md).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from flashsmith.base import settings
from flashsmith.measure.environment import environment_of
from flashsmith.measure.record import Record, append_records
from flashsmith.runtime.devices import default_device

OWN_SRC = Path(__file__).resolve().parents[1] / "src"
CALLS = Path(__file__).with_name("host_calls.py")
DRIVER = Path(__file__).with_name("standin_driver.c")
CACHE = "FLASHSMITH_CACHE_DIR"
OTHER, THIS, CONTROL = "other version", "this version", "this version again"
SDPA = {False: "torch sdpa", True: "torch sdpa decode"}  # whether a call is one on a cache
FIRST_ROUNDS = 7


@dataclass(frozen=True)
class Version:
    """A folder of sources, and the environment of its processes."""

    src: Path
    changes: dict[str, str]

    def start(self, part: str, *only: str, path: str | None = None) -> subprocess.Popen:
        """A process of host_calls.py that imports this version, or what `path` has."""
        found = str(self.src) if path is None else path
        return subprocess.Popen(
            [sys.executable, str(CALLS), part, *only],
            env=settings.child_environment({**self.changes, "PYTHONPATH": found}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def asked(process: subprocess.Popen, name: str, calls: int) -> float:
    """Microseconds a call, of a process that answers."""
    process.stdin.write(f"{name} {calls}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def warm(
    versions: dict[str, Version], rounds: int, calls: int, only: list[str]
) -> dict[str, dict[str, list]]:
    """Microseconds of every call in every round, by call and version."""
    processes = {name: version.start("warm", *only) for name, version in versions.items()}
    known = {name: p.stdout.readline().strip().split("|") for name, p in processes.items()}
    times: dict[str, dict[str, list]] = {
        call: {name: [] for name in versions if call in known[name]} for call in known[THIS]
    }
    for number in range(rounds):
        for call, of_versions in times.items():
            shift = number % len(of_versions)
            order = [*of_versions][shift:] + [*of_versions][:shift]
            for name in order:
                of_versions[name].append(asked(processes[name], call, calls))
    for process in processes.values():
        process.stdin.close()
        process.wait()
    return times


def first(versions: dict[str, Version], case: str) -> dict[str, list[list[float]]]:
    """Seconds of the import, the first and the second call; the caches are empty at first."""
    found: dict[str, list[list[float]]] = {name: [] for name in versions}
    parent = next(iter(versions.values())).start("first", path="")
    parent.stdout.readline()
    for _ in range(1 + FIRST_ROUNDS):
        for name, version in versions.items():
            parent.stdin.write(f"{version.src}|{version.changes[CACHE]}|{case}\n")
            parent.stdin.flush()
            found[name].append([float(text) for text in parent.stdout.readline().split("|")])
    parent.stdin.close()
    parent.wait()
    return found


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios of rounds."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def warm_results(times: dict[str, dict[str, list]]) -> list[dict]:
    """A result for each call: times, the ratio to the other version, its control, and to SDPA."""
    results = []
    for call, of_versions in times.items():
        ours = of_versions[THIS]
        result = {
            "name": call,
            "median_us": statistics.median(ours),
            "least_us": min(ours),
            "control": ratio(of_versions[CONTROL], ours),
            "rounds": len(ours),
        }
        sdpa = SDPA["cache" in call]
        if sdpa in times:
            result["of_sdpa"] = ratio(ours, times[sdpa][THIS])
        if OTHER in of_versions:
            result["other_median_us"] = statistics.median(of_versions[OTHER])
            result["of_other"] = ratio(ours, of_versions[OTHER])
            result["least_of_other"] = min(ours) / min(of_versions[OTHER])
            if sdpa in times:
                result["other_of_sdpa"] = ratio(of_versions[OTHER], times[sdpa][OTHER])
        results.append(result)
    return results


def first_results(case: str, seconds: dict[str, list[list[float]]]) -> list[dict]:
    """A result for each version: with an empty cache once, and medians with a warm one.

    `of_other` is of the import and the first call together: what one needs, the other has not done.
    """
    results = []
    wholes = {name: [sum(times[:2]) for times in kept] for name, (_, *kept) in seconds.items()}
    for name, (empty, *kept) in seconds.items():
        medians = [statistics.median(column) for column in zip(*kept, strict=True)]
        results.append(
            {
                "name": f"{case}, {name}",
                "empty_cache_first_call_s": empty[1],
                "import_s": medians[0],
                "first_call_s": medians[1],
                "second_call_s": medians[2],
                "least_first_call_s": min(column[1] for column in kept),
                "import_and_first_call_s": statistics.median(wholes[name]),
                "of_other": ratio(wholes[name], wholes[OTHER]),
                "least_of_other": min(wholes[name]) / min(wholes[OTHER]),
                "processes": len(kept),
            }
        )
    return results


def show(part: str, result: dict) -> None:
    """One line of the table."""
    numbers = [f"{k} {v:.4g}" for k, v in result.items() if isinstance(v, float)]
    print(f"{part}: {result['name']:30} {', '.join(numbers)}", flush=True)


def main() -> None:
    """Measures, prints and appends records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--parts", nargs="+", default=["warm", "first"], choices=("warm", "first"))
    parser.add_argument("--first", nargs="+", default=["torch tensors"], help="or mma.sync")
    parser.add_argument("--only", nargs="+", default=[], help="names of warm calls")
    parser.add_argument("-o", dest="output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Modules are compiled by the first process alone, as an installation has them.
        made = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        if arguments.stand_in:
            made["STAND_IN"] = f"{folder}/driver.so"
            build = ["cc", "-O2", "-w", "-shared", "-fPIC", str(DRIVER), "-o", made["STAND_IN"]]
            subprocess.run(build, check=True)
        versions = {
            name: Version(src, {**made, CACHE: f"{folder}/{src.parent.name}"})
            for name, src in (
                (OTHER, arguments.other.resolve()),
                (THIS, OWN_SRC),
                (CONTROL, OWN_SRC),
            )
        }
        results = measured(versions, arguments)
    if arguments.output:
        write(arguments, results)


def measured(versions: dict[str, Version], arguments) -> list[tuple[str, dict]]:
    """What came out, part by part; printed as it comes."""
    results = []
    if "first" in arguments.parts:
        for case in arguments.first:
            results += [("first call", r) for r in first_results(case, first(versions, case))]
    if "warm" in arguments.parts:
        times = warm(versions, arguments.rounds, arguments.calls, arguments.only)
        results += [("warm call", r) for r in warm_results(times)]
    for part, result in results:
        show(part, result)
    return results


def write(arguments, results: list[tuple[str, dict]]) -> None:
    """Appends a record for each result."""
    name = "emulator" if arguments.stand_in else "cuda"
    environment = asdict(environment_of(default_device(name), compiler="none"))
    other = arguments.other.resolve().parent.name
    what = {"suite": "host", "other": other, "stand_in": arguments.stand_in}
    made = [Record({**what, "part": part}, result, environment) for part, result in results]
    append_records(arguments.output, made)


if __name__ == "__main__":
    main()
