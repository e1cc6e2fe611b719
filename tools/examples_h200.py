"""Runs every example whole, on a GPU, and records what came of it.

    PYTHONPATH=src python tools/examples_h200.py -o FILE [--steps 300]

The small GPT learns three times: twice by flashsmith under torch's deterministic algorithms, which
must end in the same bits, and once by SDPA. Packed conversations are learnt; padded prompts are
answered, and held against each prompt alone; a server answers requests in company, and each alone
in the same bits. One line an example is appended to FILE; the exit status is 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import finetune_packed
import serve_tiny
import train_tiny

from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.measure.environment import environment_of
from flashsmith.measure.record import Record, append_records
from flashsmith.runtime.devices import default_device

WHERE = "cuda" if torch.cuda.is_available() else "cpu"
NEAR = 0.05  # nats between two curves of rounding, in the mean of the last tenth


def trained(steps: int) -> dict:
    """Losses by flashsmith and by SDPA, and whether flashsmith's are the same bits twice."""
    torch.use_deterministic_algorithms(True)
    first, second = (train_tiny.train(train_tiny.by_flashsmith, steps, WHERE) for _ in range(2))
    torch.use_deterministic_algorithms(False)
    theirs = train_tiny.train(train_tiny.by_sdpa, steps, WHERE)
    last = max(steps // 10, 1)
    apart = abs(sum(first[-last:]) - sum(theirs[-last:])) / last
    return {
        "losses": {"flashsmith": first, "SDPA": theirs},
        "same_bits": first == second,
        "apart": apart,
        "right": first == second and apart <= NEAR and first[-1] < first[0],
    }


def packed(steps: int) -> dict:
    """Losses of packed conversations."""
    losses = finetune_packed.main(["--steps", str(steps)])
    return {"losses": losses, "right": losses[-1] < losses[0] - 1}


def generated(tokens: int) -> dict:
    """Answers to padded prompts: how far behind the best each token is for the prompt alone."""
    import generate

    out = generate.main(["--tokens", str(tokens)]).cpu()
    model = generate.small_llama().to(WHERE, torch.bfloat16).eval()
    longest, worst = max(generate.LENGTHS), 0.0
    for row, length in zip(out, generate.LENGTHS, strict=True):
        with torch.no_grad():
            logits = model(row[None, longest - length : -1].to(WHERE)).logits[0, length - 1 :]
        lost = logits.amax(-1) - logits.gather(1, row[longest:, None].to(WHERE))[:, 0]
        worst = max(worst, float(lost.max() / logits.abs().max()))
    return {"answers": out[:, longest:].tolist(), "behind": worst, "right": worst <= 0.02}


def served() -> dict:
    """Requests in company and alone: whether their logits are the same bits."""

    def asked() -> list[serve_tiny.Request]:
        return [serve_tiny.Request([*range(3, 3 + n)], wanted=12) for n in (5, 30, 14)]

    model = serve_tiny.Model(device=WHERE)
    company, same = asked(), True
    server = serve_tiny.serve(model, company, pages=5)
    for mine, alone in zip(company, asked(), strict=True):
        serve_tiny.serve(model, [alone], pages=9)
        same &= torch.equal(torch.stack(mine.logits), torch.stack(alone.logits))
    return {
        "answers": [request.answer for request in company],
        "evictions": server.evictions,
        "same_bits": same,
        "right": same and server.evictions > 0,
    }


def main() -> None:
    """Runs them one after the other; the table is last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    asked = parser.parse_args()
    steps = asked.steps
    examples = {
        "train_tiny": ({"steps": steps}, lambda: trained(steps)),
        "finetune_packed": ({"steps": max(steps // 3, 1)}, lambda: packed(max(steps // 3, 1))),
        "generate": ({"tokens": 20}, lambda: generated(20)),
        "serve_tiny": ({}, served),
    }
    environment = asdict(environment_of(default_device(), compiler=find_nvrtc().compiler))
    table, wrong = [], 0
    for name, (options, run) in examples.items():
        begin = time.monotonic()
        result = run() | {"seconds": round(time.monotonic() - begin, 2)}
        what = {"suite": "examples", "name": name, **options}
        append_records(asked.output, [Record(what, result, environment)])
        wrong += not result["right"]
        short = {k: v for k, v in result.items() if k not in ("losses", "answers")}
        table.append(f"{name:16} {short}")
    print("\n".join(table))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
