"""The parts of tools/bwd_owed_h200.py that race nothing: compiles, faults, errors, bits, losses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from bwd_owed_base import WIDTHS, Part, cells, of_mma_sync, problem_of, tensors_of

GRADIENTS = ("dq", "dk", "dv")
REPEATS = 100
WAITING = ", arrivals that wait"  # said of checks of `_with_waits`
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


def _with_waits(folder: Path) -> Path:
    """A copy of the sources in which who hands P over waits for who reads it.

    racecheck reports hazards where warps of these kernels meet by `bar.arrive` and `bar.sync`, not
    in a small kernel that does the same. With sums in any order no arrival is left in the copy.
    """
    sources = Path(__file__).parents[1] / "src"
    shutil.copytree(sources, folder, ignore=shutil.ignore_patterns("__pycache__", "*.bundle"))
    header = folder / "flashsmith/cuda/include/flashsmith/sm80/backward_sums/block_warp.cuh"
    text = header.read_text()
    arrives = "bar_arrive_named(pair_barrier(), kPair)"
    assert text.count(arrives) == 1
    header.write_text(text.replace(arrives, "bar_sync_named(pair_barrier(), kPair)"))
    return folder


def _sanitized(
    tool: str, forms: Path, *options: str, sources: Path | None = None
) -> subprocess.Popen:
    """Quick cases of the short forms in a file, by this package or one in another folder."""
    command = [shutil.which("compute-sanitizer") or "compute-sanitizer", "--tool", tool, *options]
    verify = [sys.executable, "-m", "flashsmith", "verify", f"@{forms}", "--device", "cuda"]
    return subprocess.Popen(
        [*command, "--error-exitcode", "9", *verify],
        env=os.environ | ({} if sources is None else {"PYTHONPATH": str(sources)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _sanitizers(part: Part) -> dict[str, tuple[str, list, tuple[str, ...]]]:
    """Tools, configurations and options, by what is said of them."""
    from flashsmith.base.dtypes import DType
    from flashsmith.kernels.sm80_backward.sets import configs_for as of_mma
    from flashsmith.kernels.sm90_backward.sets import FREE_FULL, FREE_HIDING, GROUPS, HIDING
    from flashsmith.kernels.sm90_backward.sets import configs_for as of_wgmma

    mma = {d: of_mma(DType.BF16, d)[-1] for d in WIDTHS}
    hiding = {d: of_wgmma(DType.BF16, d)[HIDING] for d in WIDTHS}
    free = of_wgmma(DType.BF16, 64)[FREE_HIDING]
    # Of the quick cases' q tiles blocks at d_head 64 begin at more than the first.
    staggered = of_wgmma(DType.BF16, 64)[FREE_FULL]
    parts = of_wgmma(DType.BF16, 128)[GROUPS[HIDING]]
    assert staggered.staggered
    assert parts.part_mb
    work = {f"memcheck wgmma d {d}": ("memcheck", [hiding[d]], ()) for d in WIDTHS}
    work["memcheck wgmma d 64, any order"] = ("memcheck", [free], ())
    work["memcheck wgmma d 64, staggered"] = ("memcheck", [staggered], ())
    work["memcheck wgmma d 128, parts of groups"] = ("memcheck", [parts], ())
    work |= {f"memcheck mma.sync d {d}": ("memcheck", [mma[d]], ()) for d in WIDTHS}
    report = ("--racecheck-report", "all")
    work |= {f"racecheck mma.sync d {d}": ("racecheck", [mma[d]], report) for d in WIDTHS}
    for d in WIDTHS:
        sums = [of_mma_sync(part, problem_of(d, 4096, causal)) for causal in (False, True)]
        work[f"memcheck mma.sync as chosen d {d}"] = ("memcheck", sums, ())
        work[f"racecheck mma.sync as chosen d {d}"] = ("racecheck", sums, report)
        free_sums = [replace(c, unordered=True, turn=1, rounds=False) for c in sums]
        what = f"racecheck mma.sync in any order d {d}{WAITING}"
        work[what] = ("racecheck", free_sums, report)
    # It sees neither TMA nor mbarriers: the kernel of all products is left out.
    around = (*report, "--kernel-name-exclude", "kns=sm90_backward_tiles")
    for d, configs in ((64, [free, staggered]), (128, [hiding[128], parts])):
        work[f"racecheck before and after wgmma d {d}"] = ("racecheck", configs, around)
    return work


def sanitize(part: Part) -> None:
    """Quick cases of what the rule chooses, all tools at once; kernels are compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        started, waiting = {}, _with_waits(Path(folder) / "src")
        for number, (what, (tool, configs, options)) in enumerate(_sanitizers(part).items()):
            forms = Path(folder) / f"{number}.txt"
            forms.write_text("\n".join(dict.fromkeys(c.short_form() for c in configs)))
            sources = waiting if what.endswith(WAITING) else None
            started[what] = _sanitized(tool, forms, *options, sources=sources)
        _say_sanitized(part, started)


def _say_sanitized(part: Part, started: dict[str, subprocess.Popen]) -> None:
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
        if not clean:
            found = [line.strip("= ") for line in text.splitlines() if " access " in line]
            result["first"] = list(dict.fromkeys(found))[:8]
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
        work.append((of_mma_sync(part, problem), problem))
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
        for family, config in (("chosen", None), ("mma.sync", of_mma_sync(part, problem))):
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
        for config in (chosen, of_mma_sync(part, problem)):
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
