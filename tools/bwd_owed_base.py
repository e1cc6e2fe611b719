"""What parts of tools/bwd_owed_h200.py share: problems, tensors, contenders, lines of a table."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

TOKENS, WIDTH = 16384, 2048  # batch * length, heads * d_head, as in the papers' grid
WIDTHS = (64, 128, 256)
ROUNDS = 15


@dataclass(frozen=True)
class Line:
    """One line of the table: what was found, what it must be, and whether it is."""

    what: str
    found: str
    bar: str
    holds: bool | None  # None: no bar


class Part:
    """What a part needs of its process, and where its lines and records go."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.until = time.monotonic() + arguments.limit

    @cached_property
    def device(self):
        """The GPU; the emulator where there is none, which tries the code that needs no time."""
        from flashsmith.runtime.devices import default_device

        return default_device()

    @cached_property
    def environment(self):
        """Of every record."""
        from flashsmith.compile.nvrtc.library import find_nvrtc
        from flashsmith.measure.environment import environment_of

        return environment_of(self.device, compiler=find_nvrtc().compiler)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    def say(self, what: str, found: str, bar: str = "", holds: bool | None = None) -> None:
        """A line of the table, kept at once."""
        with self.arguments.lines.open("a") as file:
            file.write(json.dumps(asdict(Line(what, found, bar, holds))) + "\n")

    def keep(self, name: str, result: dict, **what: object) -> None:
        """A record that is not of a race."""
        from flashsmith.measure.record import Record, append_records

        made = Record({"suite": "owed", "name": name, **what}, result, asdict(self.environment))
        append_records(self.arguments.output, [made])

    def race(self, contenders: Sequence, problem, flops: Sequence[float], **how):
        """An interleaved run; records are of `problem`, or of the one that a contender names."""
        from flashsmith.measure.interleaved import compare
        from flashsmith.measure.record import append_records, records_of

        run = compare(self.device, contenders, rounds=ROUNDS, attempts=2, **how)
        for place, work in enumerate(flops):
            own = problem[place] if isinstance(problem, list) else problem
            found = records_of(run, own, self.environment, suite="owed", flops=work)
            append_records(self.arguments.output, [found[place]])
        return run


def problem_of(d_head: int, length: int, causal: bool, **more):
    """One cell of the papers' grid."""
    from flashsmith.problem.attention import AttentionProblem

    heads = WIDTH // d_head
    return AttentionProblem(
        *(TOKENS // length, heads, more.pop("kv_heads", heads), length, length, d_head),
        causal=causal,
        operation="backward",
        **more,
    )


def tensors_of(problem, layout: str = "bshd") -> dict:
    """Normal numbers as (batch, row, head, d_head), whatever their order in memory."""
    import torch

    p, kind = problem, {"FP16": torch.float16, "BF16": torch.bfloat16}[problem.dtype.name]
    torch.manual_seed(0)

    def made(rows: int, heads: int, of: int = 1):
        shape = (p.batch, heads, rows, p.d_head) if layout == "bhsd" else None
        shape = shape or (p.batch, rows, of, heads, p.d_head)
        x = torch.randn(shape, device="cuda", dtype=kind)
        return x.transpose(1, 2) if layout == "bhsd" else x

    found = {}
    rows = {"q": p.q_len, "k": p.k_len, "v": p.k_len, "o": p.q_len}
    heads = {"q": p.heads, "k": p.kv_heads, "v": p.kv_heads, "o": p.heads}
    if layout == "qkv":  # one tensor of all three, as a model's projection gives it
        for prefix in ("", "d"):
            of_all = made(p.q_len, p.heads, 3)
            found |= {prefix + name: of_all[:, :, n] for n, name in enumerate("qkv")}
    for name in ("q", "k", "v", "o", "dq", "dk", "dv", "do"):
        if name not in found:
            x = made(rows[name[-1]], heads[name[-1]])
            found[name] = x if layout == "bhsd" else x[:, :, 0]
    found["o"] *= 0.05
    seen = torch.arange(1, p.q_len + 1, device="cuda") if p.causal else torch.tensor(float(p.k_len))
    lse = torch.log(seen.to("cuda", torch.float32)) + 0.5
    found["lse"] = lse.expand(p.batch, p.heads, p.q_len).contiguous()
    return found


def ours(part: Part, problem, tensors, config=None, name: str = ""):
    """What is chosen for a problem, as a contender on tensors."""
    from flashsmith.kernels.arguments import TensorArg
    from flashsmith.measure.interleaved import Contender
    from flashsmith.runtime.run import prepare
    from flashsmith.tuner.choose.choice import choose

    config = config or choose(problem, part.device.arch, gpu=part.device.name).config
    prepared = prepare(part.device, config, problem)
    call = {n: TensorArg(t.data_ptr(), *t.stride()[:3]) for n, t in tensors.items()}
    prepared(call)
    part.device.synchronize()
    return Contender(name or config.short_form(), lambda stream: prepared(call, stream))


def theirs(name: str, call: Callable[[], object]):
    """A call of torch's, or of a library beside it, as a contender."""
    import torch

    from flashsmith.measure.interleaved import Contender

    def launch(handle: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            call()

    return Contender(name, launch)


def cells(lengths: Sequence[int], widths: Sequence[int] = WIDTHS) -> list[tuple[int, int, bool]]:
    """Lengths, widths, and whether causal; the longest last."""
    return [(n, d, causal) for n in lengths for d in widths for causal in (False, True)]


def over(run, place: int, base: int) -> float:
    """Times as fast as another contender, round by round."""
    from flashsmith.measure.statistics import ratio_by_round

    return ratio_by_round(run.timed[base].times_us, run.timed[place].times_us).median


def mean(numbers: Iterable[float]) -> float:
    """Geometric."""
    from flashsmith.measure.statistics import geometric_mean

    return geometric_mean(list(numbers))


def void(run) -> str:
    """Said behind a number that does not count."""
    return f" VOID {run.control.median:.3f}" if run.is_void else ""


def of_mma_sync(part: Part, problem):
    """The rule's choice on mma.sync, whatever wgmma would do."""
    from flashsmith.arch import get as get_arch
    from flashsmith.kernels.sm80_backward.rule import candidates, sums_candidates

    arch = get_arch(part.device.arch)
    return [*sums_candidates(problem, arch), *candidates(problem, arch)][0]
