"""Records what kernels made ahead cost: those of models, and those of a set's registry.

    python benchmarks/ahead_record.py models|registry [--out FILE] [--workers N]
    python benchmarks/ahead_record.py tables      # writes the tables of docs/ahead_of_time.md

No GPU is needed; every part starts from an empty kernel cache. `registry` needs nvcc.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import flashsmith
from flashsmith.arch import get as get_arch
from flashsmith.compile.ahead_of_time.build import build_bundle
from flashsmith.compile.ahead_of_time.library import build_library
from flashsmith.compile.compiler import available_cores
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels import resolve_key
from flashsmith.measure.environment import commit_of_checkout
from flashsmith.measure.record import Record, append_records

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "results" / "ahead" / "ahead.jsonl"
PAGE = ROOT / "docs" / "ahead_of_time.md"
GPU, ARCH = "NVIDIA H200", "sm_90a"
# Heads, KV heads, d_head and positions, as the models' config.json state them; and what else
# attention depends on.
TRAINED = "Qwen3 0.6B (16:8 heads, d 128)"
MODELS = {
    "GPT-2 (12 heads, d 64)": ((12, 12, 64, 1024), {}),
    "Llama 3.2 1B (32:8 heads, d 64)": ((32, 8, 64, 131072), {}),
    "Llama 3.1 8B (32:8 heads, d 128)": ((32, 8, 128, 131072), {}),
    TRAINED: ((16, 8, 128, 40960), {}),
    "gpt-oss 20B (64:8 heads, d 64, window, sinks)": (
        (64, 8, 64, 131072),
        {"model_type": "gpt_oss", "sliding_window": 128},
    ),
    "Gemma 2 9B (16:8 heads, d 256, cap)": (
        (16, 8, 256, 8192),
        {"attn_logit_softcapping": 50.0, "sliding_window": 4096},
    ),
}
SETS = ("smoke", "prog")  # of the registry


def config_of(name: str) -> dict[str, object]:
    """A model's config.json, as far as warming up reads it."""
    (heads, kv_heads, d_head, positions), more = MODELS[name]
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": d_head,
        "max_position_embeddings": positions,
        **more,
    }


def models(arguments) -> None:
    """Prefill and decoding of each model; of one training, too."""
    wanted = [(name, False) for name in MODELS] + [(TRAINED, True)]
    for name, training in wanted:
        with empty_cache(), processor() as spent:
            made = flashsmith.warmup(
                model=config_of(name), gpu=GPU, training=training, workers=arguments.workers
            )
        result = {
            "problems": made.problems,
            "kernels": made.kernels,
            "processor_s": spent[0],
            "seconds": round(made.seconds, 2),
        }
        what = {"suite": "ahead", "part": "model", "name": name, "training": training, "gpu": GPU}
        record(arguments, what, result)


def registry(arguments) -> None:
    """A set as a bundle and as a C library."""
    builders = {"bundle": build_bundle, "library": build_library}
    for key in SETS:
        for form, build in builders.items():
            with empty_cache() as folder, processor() as spent:
                arches = [get_arch(ARCH)]
                made = build(resolve_key(key), arches, folder / form, workers=arguments.workers)
            result = {
                "configs": made.n_configs,
                "kernels": made.n_kernels,
                "bytes": made.n_bytes,
                "processor_s": spent[0],
                "seconds": round(made.seconds, 2),
                "with": made.compiler,
            }
            what = {"suite": "ahead", "part": "registry", "name": key, "form": form, "arch": ARCH}
            record(arguments, what, result)


@contextmanager
def processor() -> Iterator[list[float]]:
    """Gives a list that holds, at the end, the processor's seconds: other jobs do not count."""
    spent: list[float] = []
    before = _processor_s()
    yield spent
    spent.append(round(_processor_s() - before, 2))


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class empty_cache(tempfile.TemporaryDirectory):  # noqa: N801 - used as a function
    """A kernel cache of its own for a while; gives a folder that goes with it."""

    def __enter__(self) -> Path:
        folder = Path(super().__enter__())
        os.environ["FLASHSMITH_CACHE_DIR"] = str(folder / "cache")
        return folder


def record(arguments, what: dict, result: dict) -> None:
    """Appends one line and shows it."""
    commit, dirty = commit_of_checkout()
    environment = {
        "compiler": find_nvrtc().compiler,
        "cores": arguments.workers or available_cores(),
        "flashsmith": flashsmith.__version__,
        "commit": commit,
        "dirty": dirty,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    append_records(arguments.out, [Record(what, result, environment)])
    print(what, result)


def newest(part: str) -> list[dict]:
    """The last record of everything that a part recorded, in the order of their first."""
    found = {}
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        data = json.loads(line)
        if data["what"]["part"] == part:
            found[json.dumps(data["what"])] = data
    return list(found.values())


def model_table() -> str:
    """The records of models as the page shows them."""
    lines = ["| model | problems | kernels | seconds of one core |", "|---|---|---|---|"]
    for data in newest("model"):
        result, what = data["result"], data["what"]
        name = what["name"] + (", training" if what["training"] else "")
        lines.append(
            f"| {name} | {result['problems']} | {result['kernels']} | {result['processor_s']:.0f} |"
        )
    return "\n".join(lines)


def registry_table() -> str:
    """The records of registries as the page shows them."""
    lines = ["| set | made | configurations | kernels | size | seconds of one core | with |"]
    lines.append("|---|---|---|---|---|---|---|")
    for data in newest("registry"):
        result, what = data["result"], data["what"]
        lines.append(
            f"| `{what['name']}` | {what['form']} | {result['configs']} | {result['kernels']} "
            f"| {result['bytes'] / 1e6:.2f} MB | {result['processor_s']:.0f} | {result['with']} |"
        )
    return "\n".join(lines)


TABLES = {"models": model_table, "registry": registry_table}


def shown(name: str) -> str:
    """The table of this name that the page has."""
    text = PAGE.read_text(encoding="utf-8")
    return text.partition(f"<!-- {name}: begin -->\n")[2].partition(f"\n<!-- {name}: end -->")[0]


def tables(arguments) -> None:
    """Writes the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        before, begin, rest = text.partition(f"<!-- {name}: begin -->\n")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        text = f"{before}{begin}{make()}\n{end}{after}"
    PAGE.write_text(text, encoding="utf-8")


def main() -> int:
    parts = {"models": models, "registry": registry, "tables": tables}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--out", type=Path, default=RECORDS)
    parser.add_argument("--workers", type=int)
    arguments = parser.parse_args()
    parts[arguments.part](arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
