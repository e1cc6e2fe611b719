"""What must hold beside speed: accuracy beside cuDNN's, equal bits, two streams, no bad access."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from hopper_parts import Setting, flat
from hopper_shapes import Tensors, cudnn, device, make_tensors, now, ours, pick, problems, truth

from flashsmith.check.cases import quick_cases
from flashsmith.check.survey import compile_jobs
from flashsmith.compile.compiler import CompileJob
from flashsmith.config.kernel_config import KernelConfig
from flashsmith.measure.record import Record

REPEATS = 100
SMALL = 700  # rows and keys of the accuracy cases: no multiple of a tile
MASKED_ERROR = 4e-3  # of BF16 output; twice what every BF16 kernel has
LSE_ERROR = 1e-4  # per unit of the largest log-sum-exp: FP32 sums of up to 700 terms
SANITIZER_SECONDS = 40
_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) errors")

Line = dict[str, object]


def checks(setting: Setting) -> Iterator[Record]:
    """Right before fast."""
    lines = (*_accuracy(), _masked_rows(), _same_bits(), _two_streams())
    for line in lines:
        names = ("check", "d_head", "dtype", "causal", "gain", "lse", "config")
        what = {name: line.pop(name) for name in names if name in line}
        yield flat(setting, {"suite": "hopper checks", **what}, line)


def _small(
    d: int, dtype: torch.dtype, gain: float, rows: int = SMALL, keys: int = SMALL
) -> Tensors:
    def one(n: int) -> torch.Tensor:
        return torch.randn(2, n, 4, d, device="cuda", dtype=dtype)

    return Tensors(one(rows) * gain, one(keys), one(keys))


def _error(out: torch.Tensor, exact: torch.Tensor) -> float:
    return float((out.double() - exact).norm() / exact.norm())


def _accuracy() -> Iterator[Line]:
    """Relative Frobenius error against float64, and cuDNN's on the same inputs."""
    for d in (64, 128, 256):
        for dtype in (torch.bfloat16, torch.float16):
            for causal in (False, True):
                for gain in (1.0, 30.0):
                    yield from _accuracy_of(d, dtype, causal, gain)


def _accuracy_of(d: int, dtype: torch.dtype, causal: bool, gain: float) -> Iterator[Line]:
    t = _small(d, dtype, gain)
    exact, exact_lse = truth(t, causal=causal)
    peer = _error(cudnn(t, causal=causal)().transpose(1, 2), exact)
    lse = torch.full((2, 4, SMALL), float("nan"), device="cuda")
    for asked in (None, lse):
        out = torch.full_like(t.q, float("nan"))
        run, config = ours(t, causal=causal, out=out, lse=asked)
        now(run)
        torch.cuda.synchronize()
        mine = _error(out, exact)
        line: Line = {
            "check": "accuracy",
            "d_head": d,
            "dtype": str(dtype).removeprefix("torch."),
            "causal": causal,
            "gain": gain,
            "lse": asked is not None,
            "config": config.short_form(),
            "error": mine,
            "cudnn_error": peer,
            "of_cudnn": mine / peer,
            "ok": True,
        }
        if asked is not None:
            off = float((lse.double() - exact_lse).abs().max())
            line |= {"lse_error": off, "ok": off <= LSE_ERROR * float(exact_lse.abs().max())}
        yield line


def _masked_rows() -> Line:
    t = _small(128, torch.bfloat16, 1.0, rows=500, keys=300)
    out = torch.full_like(t.q, float("nan"))
    lse = torch.full((2, 4, 500), float("nan"), device="cuda")
    now(ours(t, causal=True, diagonal=-100, out=out, lse=lse)[0])
    torch.cuda.synchronize()
    zero = bool((out[:, :100] == 0).all()) and bool((lse[..., :100] == float("-inf")).all())
    error = _error(out, truth(t, causal=True, diagonal=-100)[0])
    return {"check": "masked rows", "ok": zero and error < MASKED_ERROR, "error": error}


def _same_bits() -> Line:
    same, configs = True, []
    for d in (64, 128, 256):
        t = make_tensors(d, 2048)
        out = torch.empty_like(t.q)
        run, config = ours(t, causal=True, out=out)
        now(run)
        first = out.clone()
        for _ in range(REPEATS):
            out.fill_(float("nan"))
            now(run)
            same &= bool((out == first).all())
        configs.append(config.short_form())
    return {"check": "same bits", "ok": same, "runs": REPEATS, "config": "; ".join(configs)}


def _two_streams() -> Line:
    made = [make_tensors(128, 1024), make_tensors(128, 1024)]
    outs = [torch.empty_like(t.q) for t in made]
    runs = [ours(t, causal=True, out=o)[0] for t, o in zip(made, outs, strict=True)]
    for run in runs:
        now(run)
    torch.cuda.synchronize()
    alone = [o.clone() for o in outs]
    streams = [torch.cuda.Stream() for _ in runs]
    for _ in range(50):
        for run, stream in zip(runs, streams, strict=True):
            with torch.cuda.stream(stream):
                now(run)
    torch.cuda.synchronize()
    same = all(bool((o == a).all()) for o, a in zip(outs, alone, strict=True))
    return {"check": "two streams", "ok": same}


def _picks() -> list[KernelConfig]:
    return list(dict.fromkeys(pick(problem) for problem in problems()))


def memory_checked() -> list[CompileJob]:
    """The kernels that memcheck watches: compiled before, because under it everything is slow."""
    return compile_jobs(device(), [(c, case) for c in _picks() for case in quick_cases(c)])


def sanitized(setting: Setting) -> Iterator[Record]:
    """memcheck over every kernel that `choose` picks in the grid, on small cases with odd lengths.

    racecheck follows cp.async and ordinary stores only: what TMA writes and what mbarriers order it
    does not see, so it would say nothing of these kernels. The emulator's checks stand for it.
    """
    configs = [config.short_form() for config in _picks()]
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "picks.txt"
        key.write_text("".join(f"{config}\n" for config in configs), encoding="utf-8")
        verify = [sys.executable, "-m", "flashsmith", "verify", f"@{key}", "--device", "cuda"]
        command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", *verify]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SANITIZER_SECONDS, check=False
            )
            text, code = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired:
            text, code = "", None
    what = {"suite": "sanitizer", "tool": "memcheck", "set": "picks of the Hopper record"}
    found = _ERRORS.search(text)
    yield flat(
        setting,
        what | {"configs": len(configs)},
        {
            "exit_code": code,
            "errors": int(found[1]) if found else None,
            "summary": " ".join(line for line in text.splitlines() if "SUMMARY" in line),
            "verified": next((x for x in text.splitlines() if " right, " in x), ""),
        },
    )
    if code != 0:
        print(text[-3000:], flush=True)
