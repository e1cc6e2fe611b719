"""Instructions that read and write registers only: arithmetic, conversions, shuffles, votes."""
# ruff: noqa: E501 - a line of assembly stays one line

from __future__ import annotations

import re

import numpy as np

from instruction_cases.case import PRELUDE, Case, Compare, in_ulps, same_bits, same_floats

THREADS = 128
# letter of an operand: asm constraint, C type, how 64 bits of input become it
OPERANDS = {
    "r": ("r", "u32", "(u32){}"),
    "d": ("r", "u32", "(u32){}"),
    "s": ("r", "u32", "(u32){}"),
    "l": ("l", "u64", "{}"),
    "h": ("h", "u16", "(u16){}"),
    "f": ("f", "float", "__uint_as_float((u32){})"),
    "n": ("f", "float", "__uint_as_float((u32){})"),
    "p": ("f", "float", "__uint_as_float((u32){})"),
    "x": ("r", "u32", "(u32){}"),
    "y": ("r", "u32", "(u32){}"),
    "a": ("h", "u16", "(u16){}"),
    "b": ("h", "u16", "(u16){}"),
}


def _operand(kind: str, rng: np.random.Generator) -> np.ndarray:
    """64-bit inputs for one operand of every thread, special values among them."""
    n = THREADS
    if kind == "s":
        return rng.integers(0, 40, n, dtype=np.uint64)
    if kind == "d":  # divisors: dividing by 0 gives what the machine likes
        return rng.integers(2, 2**31, n, dtype=np.uint64)
    if kind == "l":
        return rng.integers(0, 2**64, n, dtype=np.uint64)
    if kind == "h":
        return rng.integers(0, 2**16, n, dtype=np.uint64)
    if kind == "r":
        values = rng.integers(0, 2**32, n, dtype=np.uint64)
        values[:6] = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 31]
        return rng.permutation(values)
    if kind in "xa":
        halves = rng.standard_normal((n, 2)).astype(np.float16)
        halves[0] = [np.inf, -0.0]
        bits = halves.view(np.uint16)
    elif kind in "yb":
        bits = (rng.standard_normal((n, 2)).astype(np.float32).view(np.uint32) >> 16).astype(
            np.uint16
        )
    else:
        values = rng.standard_normal(n).astype(np.float32)
        if kind == "f":
            values *= np.float32(10.0) ** rng.integers(-30, 30, n).astype(np.float32)
            special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-42, 65520.0, 3.4e38]
            values[: len(special)] = special
        if kind == "n":
            values = (values * 20).astype(np.float32)
        if kind == "p":
            values = np.abs(values) * np.float32(10.0) ** rng.integers(-20, 20, n).astype(
                np.float32
            )
        return rng.permutation(values).view(np.uint32).astype(np.uint64)
    if kind in "ab":
        return bits[:, 0].astype(np.uint64)
    return bits.reshape(n, 2).astype(np.uint32).view(np.uint32).astype(np.uint64) @ np.array(
        [1, 65536], np.uint64
    )


def register_case(
    name: str,
    lines: list[tuple[str, str, str]],
    *,
    compare: Compare = same_bits,
    unit: str = "bits",
    allowed: float = 0.0,
    seed: int = 0,
) -> Case:
    """One case of many asm lines: (text, kind of the result, kinds of the inputs)."""
    rng = np.random.default_rng([seed, *name.encode()])
    body, inputs = [], []
    for index, (text, result, kinds) in enumerate(lines):
        arguments = []
        for kind in kinds:
            constraint, _, read = OPERANDS[kind]
            value = read.format(f"in[{len(inputs)} * {THREADS} + threadIdx.x]")
            arguments.append(f'"{constraint}"({value})')
            inputs.append(_operand(kind, rng))
        constraint, ctype, _ = OPERANDS[result]
        store = {"float": "__float_as_uint(d)"}.get(ctype, "d")
        body.append(
            f'    {{ {ctype} d; asm volatile("{text}" : "={constraint}"(d) : '
            f"{', '.join(arguments)}); out[{index} * {THREADS} + threadIdx.x] = {store}; }}"
        )
    word = "u32" if compare is not same_bits else "u64"
    source = (
        PRELUDE
        + f'extern "C" __global__ void __launch_bounds__({THREADS}) probe(const u64* in, {word}* out) {{\n'
        + "\n".join(body)
        + "\n}\n"
    )
    size = 4 if word == "u32" else 8
    mnemonics = sorted({_mnemonic(text) for text, _, _ in lines})
    return Case(
        name,
        ", ".join(mnemonics),
        source,
        (np.concatenate(inputs),),
        len(lines) * THREADS * size,
        THREADS,
        compare=compare,
        unit=unit,
        allowed=allowed,
    )


def _mnemonic(text: str) -> str:
    """The opcode a line is about: not the ones that set up or keep predicates."""
    special = re.search(r"%%[\w.]+", text)
    if special:
        return special.group()[1:]
    found = re.findall(r"(?:^|[;{])\s*([a-z]\w*(?:\.[\w:]+)+)", text)
    others = [word for word in found if not word.startswith(("setp", "selp", "mov"))]
    return (others or found)[0]


def _line(op: str, result: str, kinds: str) -> tuple[str, str, str]:
    return f"{op} {', '.join(f'%{i}' for i in range(len(kinds) + 1))};", result, kinds


def _setp(op: str, kinds: str) -> tuple[str, str, str]:
    text = f"{{ .reg .pred p; {op} p, %1, %2; selp.u32 %0, 1, 0, p; }}"
    return text, "r", kinds


def _shfl(mode: str, lane: str, clamp: str) -> list[tuple[str, str, str]]:
    value = f"shfl.sync.{mode}.b32 %0, %1, {lane}, {clamp}, 0xffffffff;"
    valid = (
        f"{{ .reg .pred p; .reg .b32 t; shfl.sync.{mode}.b32 t|p, %1, {lane}, {clamp}, "
        "0xffffffff; selp.u32 %0, 1, 0, p; }"
    )
    return [(value, "r", "r"), (valid, "r", "r")]


def _vote(op: str, result_is_predicate: bool) -> tuple[str, str, str]:
    head = "{ .reg .pred p, q; setp.lt.u32 p, %1, 0x80000000; "
    if result_is_predicate:
        return head + f"{op} q, p, 0xffffffff; selp.u32 %0, 1, 0, q; }}", "r", "r"
    return head + f"{op} %0, p, 0xffffffff; }}", "r", "r"


INTEGERS = [
    *(_line(f"{op}.{t}", "r", "rr") for op in ("add", "sub", "min", "max") for t in ("s32", "u32")),
    *(_line(f"mul.{part}.{t}", "r", "rr") for part in ("lo", "hi") for t in ("s32", "u32")),
    *(_line(f"mad.lo.{t}", "r", "rrr") for t in ("s32", "u32")),
    *(_line(f"mul.wide.{t}", "l", "rr") for t in ("s32", "u32")),
    *(_line(f"mad.wide.{t}", "l", "rrl") for t in ("s32", "u32")),
    *(_line(f"{op}.{t}64", "l", "ll") for op in ("add", "sub", "mul.lo", "min", "max") for t in "su"),
    *(_line(f"{op}.s32", "r", "r") for op in ("neg", "abs")),
    *(_line(f"{op}.{t}", "r", "rd") for op in ("div", "rem") for t in ("s32", "u32")),
]  # fmt: skip
BITS = [
    *(_line(f"{op}.b32", "r", "rr") for op in ("and", "or", "xor")),
    *(_line(f"{op}.b64", "l", "ll") for op in ("and", "or", "xor")),
    _line("not.b32", "r", "r"),
    *(_line(f"{op}", "r", "rs") for op in ("shl.b32", "shr.u32", "shr.s32")),
    *(_line(f"{op}", "l", "ls") for op in ("shl.b64", "shr.u64", "shr.s64")),
    *(_line(f"bfe.{t}32", "r", "rss") for t in "su"),
    _line("bfi.b32", "r", "rrss"),
    ("lop3.b32 %0, %1, %2, %3, 0x96;", "r", "rrr"),
    ("lop3.b32 %0, %1, %2, %3, 0xe8;", "r", "rrr"),
    ("prmt.b32 %0, %1, %2, 0x5410;", "r", "rr"),
    _line("prmt.b32", "r", "rrr"),
    *(_line(f"{op}.b32", "r", "r") for op in ("popc", "clz", "brev")),
    _line("bfind.u32", "r", "r"),
    _line("shf.l.wrap.b32", "r", "rrs"),
    _line("shf.r.wrap.b32", "r", "rrs"),
]
PREDICATES = [
    *(_setp(f"setp.{c}.{t}32", "rr") for c in ("eq", "ne", "lt", "le", "gt", "ge") for t in "su"),
    *(_setp(f"setp.{c}.f32", "ff") for c in ("eq", "ne", "lt", "le", "gt", "ge", "neu", "ltu", "num")),
    *(_setp(f"setp.{c}.s64", "ll") for c in ("lt", "ge")),
]  # fmt: skip
FLOATS = [
    *(_line(f"{op}.rn{ftz}.f32", "f", "ff") for op in ("add", "sub", "mul") for ftz in ("", ".ftz")),
    *(_line(f"fma.rn{ftz}.f32", "f", "fff") for ftz in ("", ".ftz")),
    *(_line(f"{op}{ftz}.f32", "f", "ff") for op in ("min", "max") for ftz in ("", ".ftz")),
    *(_line(f"{op}.f32", "f", "f") for op in ("neg", "abs")),
    *(_line(f"{op}.rn.f32", "f", "ff") for op in ("div",)),
    _line("sqrt.rn.f32", "f", "p"),
    _line("rcp.rn.f32", "f", "f"),
]  # fmt: skip
HALVES = [
    *(_line(f"{op}.f16x2", "x", "xx") for op in ("add", "sub", "mul", "min", "max")),
    _line("fma.rn.f16x2", "x", "xxx"),
    _line("fma.rn.bf16x2", "y", "yyy"),
    *(_line(f"{op}.bf16x2", "y", "yy") for op in ("min", "max")),
]
CONVERTS = [
    *(_line(f"cvt.rn.{t}x2.f32", "r", "ff") for t in ("f16", "bf16")),
    *(_line(f"cvt.rn.{t}.f32", "h", "f") for t in ("f16", "bf16")),
    _line("cvt.f32.f16", "f", "a"),
    _line("cvt.f32.bf16", "f", "b"),
    *(_line(f"cvt.rn.f32.{t}32", "f", "r") for t in "su"),
    *(_line(f"cvt.{r}.{t}32.f32", "r", "f") for r in ("rzi", "rni") for t in "su"),
    *(_line(f"cvt.{r}.f32.f32", "f", "f") for r in ("rmi", "rpi", "rzi", "rni")),
]
MOVES = [
    *(_line(op, "r", "l") for op in ("cvt.u32.u64",)),
    *(_line(op, "l", "r") for op in ("cvt.u64.u32", "cvt.s64.s32")),
    *(_line(op, "r", "h") for op in ("cvt.u32.u16", "cvt.s32.s16")),
    _line("cvt.u16.u32", "h", "r"),
    _line("mov.b32", "r", "r"),
    ("{ .reg .b16 a, b; mov.b32 {a, b}, %1; mov.b32 %0, {b, a}; }", "r", "r"),
    ("{ .reg .b32 a, b; mov.b64 {a, b}, %1; mov.b64 %0, {b, a}; }", "l", "l"),
    ("{ .reg .pred p; setp.lt.s32 p, %1, 0; selp.b32 %0, %2, %3, p; }", "r", "rrr"),
]
SHUFFLES = [
    *_shfl("bfly", "1", "0x1f"),
    *_shfl("bfly", "16", "0x1f"),
    *_shfl("up", "3", "0x0"),
    *_shfl("down", "5", "0x1f"),
    *_shfl("idx", "7", "0x1f"),
    *_shfl("idx", "2", "0x181f"),
]
VOTES = [
    _vote("vote.sync.ballot.b32", False),
    _vote("vote.sync.any.pred", True),
    _vote("vote.sync.all.pred", True),
    *((f"redux.sync.{op} %0, %1, 0xffffffff;", "r", "r") for op in ("add.s32", "min.s32", "max.u32", "or.b32")),
    ("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }", "r", "r"),
    ("{ .reg .pred p; elect.sync %0|p, 0xffffffff; }", "r", "r"),
    ("activemask.b32 %0;", "r", "r"),
]  # fmt: skip
SPECIALS = [
    ("mov.u32 %0, %%laneid;", "r", "r"),
    ("mov.u32 %0, %%tid.x;", "r", "r"),
    ("mov.u32 %0, %%ntid.x;", "r", "r"),
    ("mov.u32 %0, %%ctaid.x;", "r", "r"),
    ("mov.u32 %0, %%nctaid.x;", "r", "r"),
    ("mov.u32 %0, %%cluster_ctarank;", "r", "r"),
    ("mov.u32 %0, %%cluster_nctarank;", "r", "r"),
    ("mov.u32 %0, %%clusterid.x;", "r", "r"),
]


def cases() -> list[Case]:
    # Bounds: PTX ISA, the tables of ex2, lg2, rcp, rsqrt, sqrt and div .approx; both devices lie
    # within the bound of the true value, so within twice the bound of each other.
    return [
        register_case("integer arithmetic", INTEGERS),
        register_case("bit operations", BITS),
        register_case("comparisons", PREDICATES),
        register_case("float arithmetic", FLOATS, compare=same_floats, unit="words"),
        register_case("packed 16-bit arithmetic", HALVES),
        register_case("conversions", CONVERTS, compare=same_floats, unit="words"),
        register_case("moves, selects, integer conversions", MOVES),
        register_case("shuffles", SHUFFLES),
        register_case("votes, reductions, elect", VOTES),
        register_case("special registers", SPECIALS),
        register_case(
            "ex2.approx", [_line("ex2.approx.ftz.f32", "f", "n"), _line("ex2.approx.f32", "f", "f")],
            compare=in_ulps, unit="ulps", allowed=4,
        ),
        register_case(
            "lg2.approx", [_line("lg2.approx.ftz.f32", "f", "p")], compare=in_ulps, unit="ulps",
            allowed=8,
        ),
        register_case(
            "rcp, rsqrt, sqrt, div .approx",
            [_line(f"{op}.approx.ftz.f32", "f", "p") for op in ("rcp", "rsqrt", "sqrt")]
            + [_line("div.approx.ftz.f32", "f", "nn")],
            compare=in_ulps, unit="ulps", allowed=4,
        ),
    ]  # fmt: skip
