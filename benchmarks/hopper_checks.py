"""What must hold beside speed: accuracy beside cuDNN's, equal bits, two streams, other shapes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import torch
from hopper_shapes import Tensors, cudnn, flops, make_tensors, ours, truth

Burst = Callable[[dict[str, Callable[[], object]]], dict[str, list[float]]]
Line = dict[str, object]
REPEATS = 100


def _small(d: int, dtype: torch.dtype, gain: float, rows: int = 700, keys: int = 700) -> Tensors:
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
                    t = _small(d, dtype, gain)
                    exact = truth(t, causal=causal)
                    out = torch.full_like(t.q, float("nan"))
                    run, pick = ours(t, causal=causal, out=out)
                    run()
                    theirs = cudnn(t, causal=causal)().transpose(1, 2)
                    mine, peer = _error(out, exact), _error(theirs, exact)
                    yield {
                        "part": "accuracy",
                        "d_head": d,
                        "dtype": str(dtype).removeprefix("torch."),
                        "causal": causal,
                        "gain": gain,
                        "error": mine,
                        "cudnn_error": peer,
                        "ratio": round(mine / peer, 3),
                        "config": pick,
                    }


def _masked_rows() -> Line:
    t = _small(128, torch.bfloat16, 1.0, rows=500, keys=300)
    out = torch.full_like(t.q, float("nan"))
    lse = torch.full((2, 4, 500), float("nan"), device="cuda")
    ours(t, causal=True, diagonal=-100, out=out, lse=lse)[0]()
    torch.cuda.synchronize()
    zero = bool((out[:, :100] == 0).all()) and bool((lse[..., :100] == float("-inf")).all())
    error = _error(out, truth(t, causal=True, diagonal=-100))
    return {"part": "masked rows", "ok": zero and error < 4e-3, "error": error}


def _same_bits() -> Line:
    t = make_tensors(128, 2048)
    out = torch.empty_like(t.q)
    run, pick = ours(t, causal=True, out=out)
    run()
    first, same = out.clone(), True
    for _ in range(REPEATS):
        out.fill_(float("nan"))
        run()
        same &= bool((out == first).all())
    return {"part": "same bits", "ok": same, "runs": REPEATS, "config": pick}


def _two_streams() -> Line:
    made = [make_tensors(128, 1024), make_tensors(128, 1024)]
    outs = [torch.empty_like(t.q) for t in made]
    runs = [ours(t, causal=True, out=o)[0] for t, o in zip(made, outs, strict=True)]
    for run in runs:
        run()
    torch.cuda.synchronize()
    alone = [o.clone() for o in outs]
    streams = [torch.cuda.Stream() for _ in runs]
    for _ in range(50):
        for run, stream in zip(runs, streams, strict=True):
            with torch.cuda.stream(stream):
                run()
    torch.cuda.synchronize()
    same = all(bool((o == a).all()) for o, a in zip(outs, alone, strict=True))
    return {"part": "two streams", "ok": same}


def checks(_burst: Burst) -> Iterator[Line]:
    """Right before fast."""
    yield from _accuracy()
    yield _masked_rows()
    yield _same_bits()
    yield _two_streams()


def shapes(burst: Burst) -> Iterator[Line]:
    """FP16, GQA, the other layout and odd lengths, per useful FLOP, beside the plain case."""
    for d in (64, 128, 256):
        for causal in (False, True):
            made = {
                "plain": make_tensors(d, 4096),
                "fp16": make_tensors(d, 4096, dtype=torch.float16),
                "gqa 8:1": make_tensors(d, 4096, group=8),
                "heads first": make_tensors(d, 4096, heads_first=True),
                "odd length": make_tensors(d, 4096, more_rows=37),
            }
            times = burst({n: ours(t, causal=causal)[0] for n, t in made.items()})
            rate = {
                n: flops(t, causal=causal) / statistics.median(times[n]) / 1e9
                for n, t in made.items()
            }
            yield {
                "part": "shapes",
                "d_head": d,
                "causal": causal,
                "tflops": {n: round(r, 1) for n, r in rate.items()},
                "of_plain": {n: round(r / rate["plain"], 3) for n, r in rate.items()},
            }
