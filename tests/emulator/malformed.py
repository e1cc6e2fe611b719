"""PTX texts that no compiler writes: one place of a real text changed into nonsense."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Mutation = Callable[[str, random.Random], str]

NUMBERS = (
    "-1", "0", "2147483648", "18446744073709551615", "18446744073709551616", "9" * 40, "0x", "08",
    "-9223372036854775809", "0xFFFFFFFFFFFFFFFFF", "1e9", "0f3F80", "999999",
)  # fmt: skip
WORDS = ("evil", "f33", "q64", "u128", "", "shared::grid", "x3", "v3", "pred", "b8", "aligned")
NAMES = ("MASK", "np", "u", "c", "m", "R", "r1", "K_pred_1", "branch", "pick", "None", "symbols")
SCRAPS = ("{", "}", "{{", "}}", "[", "]", ";", ",", '"', "/*", "*/", "@", "@%p1", "!", "|", "%",
          "%r99999999", "$L__BB0_2:", "_", "+", "-", ":", "//", "\\", "\x00", "é")  # fmt: skip
DIRECTIVES = (".shared .align 0 .b8 a0[16];", ".shared .align 3 .b8 a3[16];",
              ".shared .q8 bad[4];", ".shared .align 4 .b8 huge[99999999999999999999];",
              ".local .align 4 .b8 deep[99999999];", ".reg .q32 %z<4>;", ".reg .b32 %z<99999999>;",
              ".reg .b32 %z<;", ".reg .b32;", ".reg", ".align 0;", ".branchtargets;", ".evil;",
              ".pragma \"no end;", "bra nowhere;", "brx.idx %r1, nowhere;", "ret 5;", "mov;",
              "mov.u32;", "mov.u32 %r1;", "mov.u32 %r1, %r1, %r1, %r1;", "fence.evil;",
              "fence;", "membar.evil;", "cp.async.wait_group -1;", "cp.async.bulk.wait_group -1;",
              "wgmma.wait_group.sync.aligned -1;", "wgmma.wait_group.sync.aligned 8;",
              "bar.sync;", "bar.sync -1;", "bar.warp.sync;", "mbarrier.init;", "@%p1;")  # fmt: skip


def _places(text: str, pattern: str) -> list[re.Match[str]]:
    body = text.index("{")
    return [match for match in re.finditer(pattern, text) if match.start() > body]


def _replaced(text: str, rng: random.Random, pattern: str, others: tuple[str, ...]) -> str:
    match = rng.choice(_places(text, pattern))
    return text[: match.start()] + rng.choice(others) + text[match.end() :]


def _line(text: str, rng: random.Random) -> tuple[list[str], int]:
    lines = text.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if ".entry" in line)
    return lines, rng.randrange(first, len(lines))


def number(text: str, rng: random.Random) -> str:
    return _replaced(text, rng, r"(?<![\w.%$])-?\d+(?![\w.])", NUMBERS)


def modifier(text: str, rng: random.Random) -> str:
    return _replaced(text, rng, r"(?<=\.)[a-z][\w:]*", WORDS)


def register(text: str, rng: random.Random) -> str:
    others = tuple({match.group() for match in _places(text, r"%\w+")})
    return _replaced(text, rng, r"%\w+", others)


def operand(text: str, rng: random.Random) -> str:
    others = ("", ", 5", ", %tid.x", ", {%r1}", ", [%r1]", ", x")
    return _replaced(text, rng, r",\s*[^,;\n]+", others)


def scrap(text: str, rng: random.Random) -> str:
    at = rng.randrange(text.index(".entry"), len(text))
    return text[:at] + rng.choice(SCRAPS) + text[at:]


def directive(text: str, rng: random.Random) -> str:
    lines, at = _line(text, rng)
    return "".join([*lines[:at], rng.choice(DIRECTIVES) + "\n", *lines[at:]])


def dropped_line(text: str, rng: random.Random) -> str:
    lines, at = _line(text, rng)
    return "".join(lines[:at] + lines[at + 1 :])


def doubled_line(text: str, rng: random.Random) -> str:
    lines, at = _line(text, rng)
    return "".join(lines[: at + 1] + lines[at:])


def swapped_lines(text: str, rng: random.Random) -> str:
    lines, at = _line(text, rng)
    _, other = _line(text, rng)
    lines[at], lines[other] = lines[other], lines[at]
    return "".join(lines)


def truncated(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text))]


def dropped_character(text: str, rng: random.Random) -> str:
    at = rng.randrange(text.index(".entry"), len(text))
    return text[:at] + text[at + 1 :]


def global_name(text: str, rng: random.Random) -> str:
    """A variable of a name that the emulator uses inside, added to and read."""
    name = rng.choice(NAMES)
    lines, at = _line(text, rng)
    lines.insert(at, f"atom.global.add.u32 %r1, [{name}], 1;\n")
    return "".join(lines).replace(".visible", f".global .align 4 .u32 {name};\n.visible", 1)


MUTATIONS: tuple[Mutation, ...] = (
    number, modifier, register, operand, scrap, directive, dropped_line, doubled_line,
    swapped_lines, truncated, dropped_character, global_name,
)  # fmt: skip


def mutated(text: str, rng: random.Random) -> tuple[str, str]:
    """The kind of a change, and the text with one place changed so."""
    mutation = rng.choice(MUTATIONS)
    return mutation.__name__, mutation(text, rng)
