"""The parts of tools/bwd_owed_h200.py: what each measures, in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from multiprocessing import get_context
from pathlib import Path

TOKENS, WIDTH = 16384, 2048  # batch * length, heads * d_head, as in the papers' grid
WIDTHS = (64, 128, 256)
GRADIENTS = ("dq", "dk", "dv")
ROUNDS, REPEATS = 15, 100
FIRST_CALL = """
import sys, time
import torch
shape = (1, 1024, 8, int(sys.argv[1]))
x = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in ("do", *"qkvo")]
lse = torch.randn(1, 8, 1024, device="cuda")
torch.cuda.synchronize()
begin = time.perf_counter()
import flashsmith
flashsmith.flash_attention_backward(*x, lse, causal=sys.argv[2] == "causal")
torch.cuda.synchronize()
print("SECONDS", time.perf_counter() - begin)
"""


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


# Parts


def _compile_one(job) -> tuple[float, str]:
    """Seconds of a kernel that the cache does not have, and why it was refused, if it was."""
    from flashsmith.base.errors import FlashsmithError
    from flashsmith.compile.compiler import compile_kernel

    begin, why = time.perf_counter(), ""
    try:
        compile_kernel(job.config, job.needs, job.arch)
    except FlashsmithError as error:
        why = str(error)
    return time.perf_counter() - begin, why


def compile_sets(part: Part) -> None:
    """Every kernel of the quick cases; of a configuration the slowest counts."""
    from flashsmith.check.cases import quick_cases
    from flashsmith.check.survey import compile_jobs
    from flashsmith.kernels import get_kernel_configs

    workers = max(len(os.sched_getaffinity(0)) * 3 // 4, 1)
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    for key in ("hopper-bwd", "bwd", "bwd-sums"):
        configs = list(get_kernel_configs(key))
        jobs = compile_jobs(part.device, [(c, case) for c in configs for case in quick_cases(c)])
        seconds: dict[object, float] = {}
        for job, (took, why) in zip(jobs, pool.map(_compile_one, jobs), strict=True):
            seconds[job.config] = max(took, seconds.get(job.config, 0.0))
            if why:
                part.say(f"compiling for {key}", why[:70], "none", holds=False)
        for config in configs:
            slowest = max(seconds.get(kernel, 0.0) for kernel in config.kernels())
            part.keep(config.short_form(), {"compile_s": round(slowest, 3)}, part="compile")
        worst = max(seconds.values())
        what = f"{key}: {len(configs)} configurations, {len(jobs)} kernels, the slowest"
        part.say(what, f"{worst:.2f} s", "< 4 s", worst < 4)


def _sanitized(tool: str, key: Sequence[str], *options: str) -> subprocess.Popen:
    command = [shutil.which("compute-sanitizer") or "compute-sanitizer", "--tool", tool, *options]
    verify = [sys.executable, "-m", "flashsmith", "verify", *key, "--device", "cuda"]
    return subprocess.Popen(
        [*command, "--error-exitcode", "9", *verify],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def sanitize(part: Part) -> None:
    """Quick cases of what the rule chooses, all tools at once; kernels are compiled before."""
    from flashsmith.base.dtypes import DType
    from flashsmith.kernels.sm80_backward.sets import configs_for as of_mma
    from flashsmith.kernels.sm90_backward.sets import FREE_HIDING, HIDING
    from flashsmith.kernels.sm90_backward.sets import configs_for as of_wgmma

    mma = {d: of_mma(DType.BF16, d)[-1] for d in WIDTHS}
    hiding = {d: of_wgmma(DType.BF16, d)[HIDING] for d in WIDTHS}
    free = of_wgmma(DType.BF16, 64)[FREE_HIDING]
    work = {f"memcheck wgmma d {d}": ("memcheck", [hiding[d]], ()) for d in WIDTHS}
    work["memcheck wgmma d 64, any order"] = ("memcheck", [free], ())
    work |= {f"memcheck mma.sync d {d}": ("memcheck", [mma[d]], ()) for d in WIDTHS}
    report = ("--racecheck-report", "all")
    work |= {f"racecheck mma.sync d {d}": ("racecheck", [mma[d]], report) for d in WIDTHS}
    for d in WIDTHS:
        sums = [_of_mma_sync(part, problem_of(d, 4096, causal)) for causal in (False, True)]
        work[f"memcheck mma.sync as chosen d {d}"] = ("memcheck", sums, ())
        work[f"racecheck mma.sync as chosen d {d}"] = ("racecheck", sums, report)
    # It sees neither TMA nor mbarriers: the kernel of all products is left out.
    around = (*report, "--kernel-name-exclude", "kns=sm90_backward_tiles")
    for d, config in ((64, free), (128, hiding[128])):
        work[f"racecheck before and after wgmma d {d}"] = ("racecheck", [config], around)
    started = {
        what: _sanitized(tool, [c.short_form() for c in configs], *options)
        for what, (tool, configs, options) in work.items()
    }
    for what, process in started.items():
        try:
            text, _ = process.communicate(timeout=max(part.left - 3, 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            part.say(what, "not done in time", "clean", False)
            continue
        said = [line for line in text.splitlines() if "SUMMARY" in line] or text.splitlines()[-1:]
        summary = " ".join(said).replace("=========", "").strip()[:70]
        clean = process.returncode == 0 and "SUMMARY" in summary
        part.say(what, f"{'' if clean else f'rc {process.returncode} '}{summary}", "clean", clean)
        result = {"exit_code": process.returncode, "summary": summary}
        part.keep(what, result, part="sanitize")


def first_call(part: Part) -> None:
    """Import included, torch and its context not."""
    for d_head, mask in ((64, "full"), (128, "causal"), (256, "causal")):
        with tempfile.TemporaryDirectory() as empty:
            done = subprocess.run(
                [sys.executable, "-c", FIRST_CALL, str(d_head), mask],
                env=os.environ | {"FLASHSMITH_CACHE_DIR": empty},
                capture_output=True,
                text=True,
                check=False,
            )
        what = f"first gradients, d {d_head} {mask}, nothing compiled"
        if done.returncode:
            part.say(what, done.stderr.strip().splitlines()[-1][:70], "< 5 s", False)
            continue
        seconds = float(done.stdout.split()[-1])
        part.say(what, f"{seconds:.2f} s", "< 5 s", seconds < 5)
        part.keep(what, {"seconds": seconds}, part="first")
    from flashsmith.tuner.choose.shipped_kernels import shipped_jobs

    jobs = shipped_jobs().get("sm_90a", [])
    count = sum("backward" in job.config.kernel_name(job.needs) for job in jobs)
    part.say("kernels of gradients that a wheel has", f"{count} of {len(jobs)}", "> 0", count > 0)


def _exact_gradients(problem, tensors) -> list:
    """In float64, a head at a time, by the formulas rather than autograd: S x S is held thrice."""
    import torch

    p, group = problem, problem.group
    found = [torch.zeros(tensors[name].shape, dtype=torch.float64, device="cuda") for name in "qkv"]
    hidden = torch.ones(p.q_len, p.k_len, device="cuda", dtype=torch.bool).triu(1)
    for batch in range(p.batch):
        for head in range(p.heads):
            of = head // group
            q, d_o = (tensors[n][batch, :, head].double() for n in ("q", "do"))
            k, v = (tensors[n][batch, :, of].double() for n in ("k", "v"))
            scores = q @ k.T * p.softmax_scale
            if p.causal:
                scores.masked_fill_(hidden, -torch.inf)
            weights = torch.softmax(scores, -1)
            slopes = d_o @ v.T
            delta = (weights * slopes).sum(-1, keepdim=True)
            d_scores = weights * (slopes - delta) * p.softmax_scale
            found[0][batch, :, head] = d_scores @ k
            found[1][batch, :, of] += d_scores.T @ q
            found[2][batch, :, of] += weights.T @ d_o
    return found


def compile_at_once(part: Part, problems: Sequence) -> None:
    """What is chosen for gradients and for their forward calls, and mma.sync's, on all cores."""
    from flashsmith.check.cases import Case
    from flashsmith.check.survey import compile_jobs
    from flashsmith.compile.compiler import compile_many
    from flashsmith.tuner.choose.choice import choose

    arch, gpu = part.device.arch, part.device.name
    work = []
    for problem in problems:
        forward = replace(problem, operation="forward", lse=True)
        work += [(choose(one, arch, gpu=gpu).config, one) for one in (problem, forward)]
        work.append((_of_mma_sync(part, problem), problem))
    compile_many(compile_jobs(part.device, [(config, Case("", one)) for config, one in work]))


def errors(part: Part) -> None:
    """‖x - r‖ / ‖r‖ of each gradient; every pass begins from its own forward one."""
    import torch

    import flashsmith
    from flashsmith.base.dtypes import DType
    from flashsmith.bench.gradient_peers import cudnn
    from flashsmith.problem.attention import AttentionProblem

    def far(x, exact) -> float:
        return float((x.double() - exact).norm() / exact.norm())

    problems = [
        AttentionProblem(
            *(1, 1024 // d_head, 1024 // d_head, length, length, d_head),
            dtype=dtype,
            causal=causal,
            operation="backward",
        )
        for dtype, (length, d_head, causal) in product((DType.BF16, DType.FP16), cells((2048,)))
    ]
    compile_at_once(part, problems)
    worst: dict[str, float] = {}
    for problem in problems:
        dtype, d_head, causal = problem.dtype, problem.d_head, problem.causal
        x = tensors_of(problem)
        exact = _exact_gradients(problem, x)
        given = [x[name] for name in "qkv"]
        o, lse = flashsmith.flash_attention(*given, causal=causal, return_lse=True)
        with torch.no_grad():
            peer = cudnn(problem, x["do"], *given)()
        for family, config in (("chosen", None), ("mma.sync", _of_mma_sync(part, problem))):
            mine = flashsmith.flash_attention_backward(
                x["do"], *given, o, lse, causal=causal, config=config
            )
            result: dict[str, float] = {}
            for which, a, b, r in zip(GRADIENTS, mine, peer[:3], exact, strict=True):
                result[which], result[f"{which}_cudnn"] = far(a, r), far(b.transpose(1, 2), r)
                ratio, key = result[which] / result[f"{which}_cudnn"], f"{which}, {family},"
                worst[key] = max(worst.get(key, 0.0), ratio)
            name = f"{dtype.name} d {d_head} {'causal' if causal else 'full'} {family}"
            part.keep(name, result | {"elements": x["q"].numel()}, part="errors")
    for which, ratio in worst.items():
        what = f"error of {which} over cuDNN's, the largest of 12 problems, 2.1 million elements"
        part.say(what, f"{ratio:.3f}", "<= 1.1", ratio <= 1.1)


def _variants(d_head: int, causal: bool) -> dict:
    """What is raced beside the plain problem: problems and layouts, by name."""
    from flashsmith.base.dtypes import DType

    plain = problem_of(d_head, 4096, causal)
    odd = replace(plain, q_len=4071, k_len=4071)
    heads = plain.heads
    return {
        "plain": (plain, "bshd"),
        f"groups of {8 if heads % 8 == 0 else heads}": (
            replace(plain, kv_heads=max(heads // 8, 1)),
            "bshd",
        ),
        "4071 rows": (odd, "bshd"),
        "heads first": (plain, "bhsd"),
        "one tensor of q, k, v": (plain, "qkv"),
        "fp16": (replace(plain, dtype=DType.FP16), "bshd"),
    }


def shapes(part: Part) -> None:
    """By useful FLOP: rows that are padding are no use."""
    from flashsmith.problem.cost import cost_of

    found: dict[str, list[float]] = {}
    for length, d_head, causal in cells((4096,)):
        cell = f"d {d_head} {'causal' if causal else 'full'} {length}"
        if part.left < 8:
            part.say(cell, "not run in time")
            continue
        variants = _variants(d_head, causal)
        contenders = [
            ours(part, problem, tensors_of(problem, layout), name=name)
            for name, (problem, layout) in variants.items()
        ]
        problems = [problem for problem, _ in variants.values()]
        flops = [cost_of(problem).flops for problem in problems]
        run = part.race(contenders, problems, flops)
        for place, name in enumerate(variants):
            if not place:
                continue
            ratio = over(run, place, 0) * flops[place] / flops[0]
            bar = 0.97 if name == "fp16" else 0.94
            found.setdefault(name, []).append(ratio)
            what = f"{name}, {cell}, of the plain rate"
            part.say(what, f"{ratio:.3f}{void(run)}", f">= {bar}", ratio >= bar)
    for name, ratios in found.items():
        part.say(f"{name}, mean of {len(ratios)}", f"{mean(ratios):.3f}")


def beside(
    part: Part,
    peer: str,
    bar: float,
    work: Sequence[tuple[int, int, bool]],
    call_of: Callable,
    config_of: Callable = lambda problem: None,
    **how: str,
) -> None:
    """What is chosen, or what `config_of` says, beside a peer's call of the same gradients."""
    from flashsmith.problem.cost import cost_of

    ratios = []
    for length, d_head, causal in work:
        what = f"over {peer}, d {d_head} {'causal' if causal else 'full'} {length}"
        if part.left < 6:
            part.say(what, "not run in time")
            continue
        problem = problem_of(d_head, length, causal)
        x, flops = tensors_of(problem), cost_of(problem).flops
        contenders = [ours(part, problem, x, config_of(problem)), theirs(peer, call_of(problem, x))]
        run = part.race(contenders, problem, [flops, flops], **how)
        ratios.append(over(run, 0, 1))
        part.say(what, f"{ratios[-1]:.3f}{void(run)}")
    found = mean(ratios)
    part.say(f"over {peer}, mean of {len(ratios)}", f"{found:.3f}", f">= {bar}", found >= bar)


def _of_mma_sync(part: Part, problem):
    """The rule's choice on mma.sync, whatever wgmma would do."""
    from flashsmith.arch import get as get_arch
    from flashsmith.kernels.sm80_backward.rule import candidates, sums_candidates

    arch = get_arch(part.device.arch)
    return [*sums_candidates(problem, arch), *candidates(problem, arch)][0]


def mma_beside_flash(part: Part) -> None:
    """At two lengths; of the 36 cells other sections are chosen only where lengths are shorter."""
    from flashsmith.bench.gradient_peers import flash

    beside(
        *(part, "FlashAttention-2 (torch)", 1.05, cells((512, 2048, 8192))),
        lambda problem, x: flash(problem, x["do"], x["q"], x["k"], x["v"]),
        lambda problem: _of_mma_sync(part, problem),
    )


def repeats(part: Part) -> None:
    """Bits of the gradients of runs at full size, of what is chosen and of mma.sync's choice."""
    import torch

    from flashsmith.kernels.arguments import TensorArg
    from flashsmith.runtime.run import prepare
    from flashsmith.tuner.choose.choice import choose

    others, done = 0, 0
    for length, d_head, causal in cells((512, 2048, 8192)):
        problem = problem_of(d_head, length, causal)
        x = tensors_of(problem)
        call = {n: TensorArg(t.data_ptr(), *t.stride()[:3]) for n, t in x.items()}
        chosen = choose(problem, part.device.arch, gpu=part.device.name).config
        for config in (chosen, _of_mma_sync(part, problem)):
            cell = f"d {d_head} {'causal' if causal else 'full'} {length} {config.short_form()}"
            if part.left < 6:
                part.say(cell[:70], "not run in time", "same bits", False)
                continue
            prepared, first = prepare(part.device, config, problem), None
            differing = 0
            for _ in range(REPEATS):
                for name in GRADIENTS:
                    x[name].fill_(float("nan"))
                torch.cuda.synchronize()
                prepared(call)
                part.device.synchronize()
                bits = [x[name].view(torch.int16) for name in GRADIENTS]
                first = first or [b.clone() for b in bits]
                differing += not all(map(torch.equal, first, bits))
            finite = all(bool(torch.isfinite(x[name]).all()) for name in GRADIENTS)
            result = {"runs": REPEATS, "differing": differing, "finite": finite}
            part.keep(cell, result, part="repeats")
            wrong, done = differing + (not finite), done + 1
            others += wrong
            if wrong:
                part.say(cell[:70], f"{differing} differ", "same bits", False)
    what = f"runs that differ from the first, of {REPEATS} of each of {done} kernels and problems"
    part.say(what, str(others), "0", others == 0)


def sustained(part: Part) -> None:
    """Sums in any order and the default, beside FlashAttention-3 with sums in any order."""
    import importlib.util

    from flashsmith.problem.cost import cost_of

    spec = importlib.util.spec_from_file_location("owed_peer", part.arguments.fa3)
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    operators = peer.load("plain")

    def call_of(problem, x):
        given = [x[name] for name in ("do", "q", "k", "v", "o", "lse")]
        return lambda: peer.backward(operators, *given, causal=problem.causal)

    kinds = {"any order": [], "default": []}
    for length, d_head, causal in cells((4096, 16384), (128, 64, 256)):
        what = f"d {d_head} {'causal' if causal else 'full'} {length} over FlashAttention-3"
        if part.left < 15:
            part.say(what, "not run in time")
            continue
        default = problem_of(d_head, length, causal)
        free, x, flops = (
            replace(default, deterministic=False),
            tensors_of(default),
            cost_of(default).flops,
        )
        contenders = {one.name: one for one in (ours(part, free, x), ours(part, default, x))}
        names = [*contenders]
        peers = [theirs("FlashAttention-3", call_of(default, x))]
        run = part.race(
            [*contenders.values(), *peers], default, [flops] * (len(names) + 1), regime="sustained"
        )
        ratios = [over(run, place, len(names)) for place in (0, len(names) - 1)]
        for found, ratio in zip(kinds.values(), ratios, strict=True):
            found.append(ratio)
        part.say(what, f"{ratios[0]:.3f}, default {ratios[1]:.3f}{void(run)}")
    for kind, found in kinds.items():
        bar = 1.08 if kind == "any order" else None
        least = mean(found)
        told = ("", None) if bar is None else (f">= {bar}", least >= bar)
        part.say(f"{kind} over FlashAttention-3, mean of {len(found)}", f"{least:.3f}", *told)


def train(part: Part) -> None:
    """With torch's deterministic algorithms, so that other bits would be ours."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import train_tiny

    torch.use_deterministic_algorithms(True)
    where = "cuda" if torch.cuda.is_available() else "cpu"
    steps = part.arguments.steps
    losses = [train_tiny.train(train_tiny.by_flashsmith, steps, where) for _ in range(2)]
    differing = sum(a != b for a, b in zip(*losses, strict=True))
    what = f"losses of {steps} steps that differ between two runs"
    part.say(what, str(differing), "0", differing == 0)
    beside = train_tiny.train(train_tiny.by_sdpa, steps, where)
    last = [sum(x[-30:]) / len(x[-30:]) for x in (losses[0], beside)]
    part.say("loss of the last 30 steps, flashsmith and SDPA", f"{last[0]:.4f} {last[1]:.4f}")
    part.keep(
        "train_tiny",
        {"steps": steps, "differing": differing, "loss": last[0], "loss_sdpa": last[1]},
        part="train",
    )


PARTS: dict[str, Callable[[Part], None]] = {
    "compile": compile_sets,
    "sanitize": sanitize,
    "first": first_call,
    "errors": errors,
    "shapes": shapes,
    "mma": mma_beside_flash,
    "repeats": repeats,
    "sustained": sustained,
    "train": train,
}
