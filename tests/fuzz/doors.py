"""Calls with tables that lie, and gradients at odd strides: the right answer, whatever is asked.

The truth is float64 of what the page says a call means: numbers outside a sequence are clamped.
"""

from dataclasses import replace

import numpy as np
import torch
from files import require
from programs import in_time

from flashsmith import flash_attention, flash_attention_backward, workspace_bytes
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import FlashsmithError
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.tolerance import distance, expectation
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import TABLES

TORCH_TYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}
LENGTHS = (1, 17, 70, 131)
LIES = (-1, -(2**31), 2**31 - 1, 0, 1, 69, 132, 500)
COMPILED_SECONDS = 300  # kernels that a busy machine compiles first
EMULATED = 0.1  # of all calls: these compile kernels, and run them


def tabled_calls(draw, count, folder):
    """Calls with lengths, pages, packed sequences, biases, slopes and sinks."""
    lies = 0
    for number in range(count):
        problem = _forward_problem(draw)
        # Beside a sink, what large scores leave of a row may be less than its type can hold.
        gain = 1.0 if problem.sinks else draw.choice((1.0, 1.0, 30.0))
        case = Case(f"{draw.random()}", problem, gain=gain)
        bits = {name: np.array(array) for name, array in inputs_of(case).items()}
        for name, table in bits.items():
            if name in TABLES and TABLES[name].is_integer and draw.random() < 0.5:
                lies += 1
                _damage(draw, table)
        found = in_time(_attend, draw, problem, bits, seconds=COMPILED_SECONDS)
        _require_right(problem, bits, dict(zip(("o", "lse"), found, strict=True)), number)
    return lies


def gradients(draw, count, folder):
    """Gradients of dense and packed calls; those of outputs lie anywhere, or are one number."""
    odd = 0
    for number in range(count):
        problem = replace(_plain_problem(draw), operation="backward", dlse=draw.random() < 0.5)
        if draw.random() < 0.4:
            problem = replace(problem, batch=1, sequences=draw.choice((1, 2, 5)))
        case = Case(f"{draw.random()}", problem)
        bits = {name: np.array(array) for name, array in inputs_of(case).items()}
        is_odd = draw.random() < 0.5
        if is_odd:  # as of a sum: one number for all
            bits["do"] = np.broadcast_to(bits["do"][:1, :1, :1, :1], bits["do"].shape)
        odd += is_odd
        found = in_time(_differentiate, draw, problem, bits, seconds=COMPILED_SECONDS)
        made = dict(zip(("dq", "dk", "dv"), found, strict=True))
        _require_right(problem, bits, made, number)
    return odd


def bad_tables(draw, count, folder):
    """Tables that are none: refused in words, checked or not, and never anything else."""
    refused = 0
    q, k = np.zeros((2, 5, 2, 64), np.float16), np.zeros((2, 70, 1, 64), np.float16)
    for number in range(count):
        names = draw.sample(list(TABLES), draw.randint(1, 3))
        given = {name: _odd_table(draw) for name in names}
        try:
            in_time(lambda given=given: flash_attention(q, k, k, backend="emulator", **given))
        except FlashsmithError as error:
            refused += 1
            require(str(error), f"tables {number}")
    return refused


def _odd_table(draw):
    kind = draw.choice((np.int32, np.int64, np.float32, np.float16, np.bool_, np.complex64, object))
    shape = draw.choice(((), (1,), (2,), (3,), (0,), (2, 1), (2, 3), (1, 1, 5, 70), (9, 70)))
    value = draw.choice((0, 1, 5, 70))
    return draw.choice((np.full(shape, value, kind), value, "x", [value], None, [[0], [1]]))


def _plain_problem(draw):
    kv_heads, group = draw.choice((1, 2)), draw.choice((1, 3))
    is_causal = draw.random() < 0.5
    return AttentionProblem(
        *(draw.choice((1, 2)), kv_heads * group, kv_heads, draw.choice(LENGTHS)),
        *(draw.choice(LENGTHS), draw.choice((40, 64)), draw.choice(list(TORCH_TYPES))),
        causal=is_causal,
        window_left=draw.choice((None, None, 0, 40)),
        window_right=None if is_causal else draw.choice((None, 3)),
        softcap=draw.choice((None, None, 5.0)),
        layout=draw.choice(("bshd", "bhsd")),
    )


def _forward_problem(draw):
    plain = replace(_plain_problem(draw), lse=True)
    kind = draw.choice(("lengths", "pages", "packed", "packed pages", "bias", "numbers"))
    if kind == "lengths":
        asked = {name: draw.random() < 0.6 for name in ("k_lengths", "q_lengths", "k_starts")}
        return replace(plain, **asked)
    if kind in ("pages", "packed pages"):
        page = draw.choice((1, 16, 24))
        plain = replace(
            plain, k_len=page * draw.choice((1, 5)), page=page, pages=draw.choice((1, 9))
        )
        plain = replace(plain, k_lengths=True, layout="bshd")
        return replace(plain, batch=1, sequences=3) if kind == "packed pages" else plain
    if kind == "packed":
        return replace(plain, batch=1, sequences=draw.choice((1, 2, 5)))
    if kind == "bias":
        return replace(plain, bias=draw.choice(("bool", "same", "float32")), bias_keys="apart")
    return replace(plain, sinks=draw.random() < 0.6, alibi=draw.random() < 0.6)


def _damage(draw, table):
    flat = table.reshape(-1).view(np.int32)
    for _ in range(draw.randint(1, 3)):
        flat[draw.randrange(flat.size)] = draw.choice(LIES)


def _facts(problem):
    names = ("causal", "softcap", "layout")
    return {name: getattr(problem, name) for name in names} | {
        "window": (problem.window_left, problem.window_right)
    }


def _tensor(draw, name, bits, problem):
    """A torch tensor of the bits in the problem's layout, contiguous or cut from a wider one."""
    if name in TABLES or bits.ndim != 4:
        kinds = {1: torch.bool, 2: TORCH_TYPES[problem.dtype], 4: torch.float32}
        is_integer = name in TABLES and TABLES[name].is_integer
        kind = torch.int32 if is_integer else kinds[bits.itemsize]
        return torch.from_numpy(bits.view(f"i{bits.itemsize}").copy()).view(kind)
    rows = bits if problem.layout == "bshd" else bits.transpose(0, 2, 1, 3)
    is_one = not any(rows.strides)
    made = torch.from_numpy(np.ascontiguousarray(rows).view(np.int16)).view(
        TORCH_TYPES[problem.dtype]
    )
    if is_one:
        return made[:1, :1, :1, :1].expand(made.shape)
    gap = draw.choice((0, 3, 8))
    wide = torch.zeros(*made.shape[:3], made.shape[3] + gap, dtype=made.dtype)
    wide[..., : made.shape[3]] = made
    return wide[..., : made.shape[3]]


def _attend(draw, problem, bits):
    given = {name: _tensor(draw, name, array, problem) for name, array in bits.items()}
    q, k, v = (given.pop(name) for name in "qkv")
    backend = "emulator" if draw.random() < EMULATED else None
    asked = {**_facts(problem), "backend": backend, **given}
    if draw.random() < 0.3:
        room = workspace_bytes(q, k, v, return_lse=True, **asked)
        asked["workspace"] = torch.full((room,), 255, dtype=torch.uint8)
    if draw.random() < 0.3 and q.shape[3] % 8 == 0:
        asked["out"] = torch.full(q.shape, torch.nan, dtype=q.dtype)
    return flash_attention(q, k, v, return_lse=True, **asked)


def _differentiate(draw, problem, bits):
    given = {name: _tensor(draw, name, array, problem) for name, array in bits.items()}
    rows = [given.pop(name) for name in ("do", "q", "k", "v", "o", "lse")]
    backend = "emulator" if draw.random() < EMULATED else None
    return flash_attention_backward(*rows, backend=backend, **_facts(problem), **given)


def _require_right(problem, bits, found, number):
    expected = expectation(problem, bits)
    for name, array in found.items():
        numbers = array.float().numpy()
        if numbers.ndim == 4 and problem.layout == "bhsd":
            numbers = numbers.transpose(0, 2, 1, 3)
        near = distance(name, expected[name], numbers)
        assert near.ok, f"call {number}: {near}\n{problem}"
