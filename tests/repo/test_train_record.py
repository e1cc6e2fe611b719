"""docs/transformers.md shows what its record says of training steps."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_steps_is_the_one_that_the_record_gives():
    lines = (ROOT / "benchmarks/results/h200_train/llama_step.jsonl").read_text().splitlines()
    steps = {one["what"]["name"]: one["result"] for one in map(json.loads, lines)}  # the newest
    page = (ROOT / "docs/transformers.md").read_text(encoding="utf-8")
    table = page.partition("| attention | milliseconds a step")[2].splitlines()[2:]
    wanted = [
        f"| {name} | {own['median_ms']:.1f} | {own['memory_bytes'] / 2**30:.2f} |"
        for name, own in steps.items()
    ]
    assert [line for line in table if line] == wanted
    assert abs(steps["flashsmith"]["control"] - 1) <= 0.01
    assert min(steps, key=lambda name: steps[name]["median_ms"]) == "flashsmith"
