"""Odd PTX, odd command lines, odd calls and kills: an error in words, or the right answer."""

import os
import signal
import time

import numpy as np
from damage import ODD
from files import SMALL, TINY, measured, require
from typer.testing import CliRunner

from flashsmith import flash_attention
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import EmulationError, FlashsmithError
from flashsmith.check.cases import quick_cases
from flashsmith.check.tolerance import distance, expectation
from flashsmith.check.verdict import check_case
from flashsmith.cli.main import VERBS, app
from flashsmith.compile.cache.kernel_cache import KernelCache
from flashsmith.compile.compiler import compile_text
from flashsmith.emulator.memory import GlobalMemory
from flashsmith.emulator.program import load
from flashsmith.kernels import get_kernel_configs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import open_device
from flashsmith.tuner.store.database import ResultStore, read_store

RICHER = """
extern "C" __global__ void k(float* p) {
    __shared__ float s[64];
    s[threadIdx.x % 64] = p[threadIdx.x];
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < 8; ++i) sum += s[(threadIdx.x + i) % 64];
    p[threadIdx.x] = __shfl_xor_sync(~0u, sum, 1);
}
"""
TOKENS = [
    *("fence.evil;", "cp.async.wait_group -1;", "{", "}", ";", "0", "-1", "%r1", "%nosuch", "p0"),
    *(".align 0", ".b7", ".f999", ".global", "MASK", "9" * 400, "0f3F8", "[%rd1+", "@%p1", "bra"),
    *(".shared", "ret;", "trap;", "bar.sync 99;", "\0", "é", "//", "/*", '"'),
]
HANG_SECONDS = 30


class Hung(Exception):
    """A case that did not end."""


def in_time(what, *arguments, seconds=HANG_SECONDS):
    """Runs a case; one that lasts too long is a fault of the package."""

    def ring(*_):
        raise Hung

    old = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return what(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def ptx_texts(draw, count, folder):
    """PTX with tokens dropped, doubled, moved and replaced runs, or is refused by the emulator."""
    cache = KernelCache(folder / "cache", 1 << 30)
    wholes = [compile_text(text, "k", "sm_80", cache=cache).ptx for text in (TINY, RICHER)]
    ran = 0
    for _ in range(count):
        try:
            in_time(_launch, _damaged_ptx(draw, draw.choice(wholes)))
            ran += 1
        except EmulationError as error:
            require(error.kind, str(error))
    return ran


def _damaged_ptx(draw, text):
    lines = text.splitlines()
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(lines))
        words = lines[at].split(" ")
        kind = draw.randrange(5)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, draw.choice(lines))
        elif kind == 2:
            lines.insert(at, draw.choice(TOKENS))
        elif kind == 3:
            words[draw.randrange(len(words))] = draw.choice(TOKENS)
            lines[at] = " ".join(words)
        else:
            lines[at] = lines[at][: draw.randrange(len(lines[at]) + 1)]
        if not lines:
            return ""
    return "\n".join(lines)


def _launch(text):
    memory = GlobalMemory()
    address = memory.allocate(64 * 4)
    memory.write(address, np.ones(64, np.float32))
    program = load(text, "k")
    program.launch((1, 1, 1), 64, 0, (address.to_bytes(8, "little"),), memory)


KEYS = [
    *("", " ", "@", "@nosuch", "nonsense", "(FP16, 128)", "64,", ",,", "9" * 3000, "a" * 9000),
    *("(" * 500, "\x1b[31m", "sm90(", "tune+nosuch", "é", "-", "{}", "flashsmith_x__y"),
]
VALUES = [*KEYS, "-1", "0", "1e999", "nan", "1.5", "9" * 5000, "/dev/null/x", "~nosuchuser/x"]
OPTIONS = [
    *("--json", "--csv", "--all", "--arch", "--device", "--cases", "--workers", "--seq-lens"),
    *("--d-heads", "--batch", "--heads", "--kv-heads", "--k-len", "--scale", "--diagonal"),
    *("--causal", "--dtype", "--budget", "--store", "--suite", "--against", "--why", "--list"),
    *("--knob", "--rounds", "--bundle", "--trials", "--search", "--nosuch", "-o", "--executor"),
]
_CHEAP = ("configs", "cache", "results", "report", "inspect", "env")  # may be given what is good
_GOOD = ("prog", "smoke", SMALL, "list", "show", "merge", "import", "export", "diff")

_HARMLESS = [
    ("configs", "prog"),
    ("configs", "64,32"),
    ("cache",),
    ("cache", "--list"),
    ("results",),
]


def command_lines(draw, count, folder):
    """Any command line ends with an exit code and words, never with an error of Python's own."""
    runner = CliRunner()
    environment = {
        "FLASHSMITH_CACHE_DIR": str(folder / "cache"),
        "FLASHSMITH_RESULTS": str(folder / "r.sqlite"),
        "KERNELS": "",
        "COLUMNS": draw.choice(("20", "80", "0", "x")),
    }
    good = 0
    for _ in range(count):
        arguments = _command_line(draw, folder)
        ran = in_time(lambda given: runner.invoke(app, given, env=environment), arguments)
        error = ran.exception
        is_said = error is None or isinstance(error, SystemExit | FlashsmithError)
        is_said = is_said or (isinstance(error, OSError) and error.filename is not None)
        assert is_said, f"flashsmith {arguments!r}: {error!r}"
        assert "Traceback" not in ran.output, arguments
        good += ran.exit_code == 0
    return good


def _command_line(draw, folder):
    if draw.random() < 0.2:
        return [
            *draw.choice(_HARMLESS),
            *draw.sample(("--json", "--all", "--csv"), draw.randint(0, 2)),
        ]
    verb = draw.choice([*VERBS, "tuen", ""])
    values = [*VALUES, *_GOOD, str(folder)] if verb in _CHEAP else VALUES
    # A verb that would work for minutes is never given a set that it can work on.
    arguments = [verb, draw.choice(KEYS if verb not in _CHEAP else values)]
    for _ in range(draw.randint(0, 4)):
        arguments.append(draw.choice(OPTIONS))
        if draw.random() < 0.6:
            arguments.append(draw.choice(values))
    if verb in ("generate", "build", "report"):
        arguments += ["-o" if verb != "build" else "--bundle", str(folder / "made" / "out")]
    if verb in ("", "configs") and draw.random() < 0.2:
        arguments.append("--clean")
    return arguments


def kills(draw, count, folder):
    """A process that is killed while it writes loses nothing that it was told is kept."""
    path, cache = folder / "killed.sqlite", KernelCache(folder / "killed", 1 << 30)
    kernel = compile_text(TINY, "k", "sm_80", cache=KernelCache(folder / "cache", 1 << 30))
    kept = set()
    for number in range(count):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _write_until_killed(number, writer, path, cache, kernel)
        os.close(writer)
        begun = os.read(reader, 1)  # it is at work
        if draw.random() < 0.5:
            begun += os.read(reader, 64)  # and a row is kept
        time.sleep(draw.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader, "rb") as told:
            acknowledged = (begun + told.read()).split(b"\n")[:-1]
        kept |= {line.decode() for line in acknowledged if line}
        rows = {m.key.driver: m for m in read_store(path)} if path.exists() else {}
        assert kept <= set(rows), f"kill {number}: rows are lost"
        assert all(m == measured(driver) for driver, m in rows.items()), f"kill {number}"
        found = cache.get(kernel.key)
        assert found is None or found.cubin == kernel.cubin, f"kill {number}: another kernel"
    return len(kept)


def _write_until_killed(number, writer, path, cache, kernel):
    try:
        os.write(writer, b"\n")
        with ResultStore(path) as store:
            for row in range(10**6):
                store.add(measured(f"{number}.{row}"))
                os.write(writer, f"{number}.{row}\n".encode())
                if row % 4 == 0:
                    cache.put(kernel, TINY, "")
    finally:
        os._exit(1)


def calls(draw, count, folder):
    """A call with odd arguments is refused in words; one with none is right."""
    rng = np.random.default_rng(draw.randrange(2**32))
    names = ("causal", "scale", "layout", "return_lse", "config", "backend", "diagonal", "out")
    answered = 0
    for number in range(count):
        shape = (1, draw.choice((1, 5, 17)), draw.choice((1, 2)), draw.choice((8, 64, 7, 0)))
        q, k, v = (rng.normal(size=shape).astype(np.float16) for _ in range(3))
        odd = {name: draw.choice(ODD) for name in draw.sample(names, draw.randint(0, 2))}
        if draw.random() < 0.3:
            k = draw.choice((None, [1], k[:, :0], k[..., ::2], k.astype(np.float32), k[0]))
        try:
            found = in_time(lambda *a, more=odd: flash_attention(*a, **more), q, k, v)
        except FlashsmithError as error:
            require(str(error), f"call {number}")
            continue
        answered += 1
        out = found[0] if isinstance(found, tuple) else found
        assert out.shape == q.shape, f"call {number}"
        if not odd and k.shape == q.shape:
            shape = (1, q.shape[2], q.shape[2], q.shape[1], q.shape[1], q.shape[3])
            problem = AttentionProblem(*shape, DType.FP16)
            bits = {n: x.view(np.uint16) for n, x in zip("qkv", (q, k, v), strict=True)}
            off = distance("o", expectation(problem, bits)["o"], out.astype(np.float32))
            assert off.ok, f"call {number}: {off}"

    return answered


def legal_kernels(draw, count, folder):
    """Kernels of any legal configuration are right."""
    device = open_device("emulator")
    every = [config for key in ("tune", "hopper") for config in get_kernel_configs(key)]
    for config in draw.sample(every, count):
        case = draw.choice(quick_cases(config))
        check_case(device, config, case).require_ok(config.short_form())
    return count
