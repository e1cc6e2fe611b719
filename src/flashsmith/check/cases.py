"""Which problems a configuration is checked on: each case is there for a way kernels go wrong."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import to_bits
from flashsmith.check.same_precision import same_precision
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import facts_that_hold
from flashsmith.problem.signature import FORWARD, TensorRole, signature_of
from flashsmith.runtime.tensors import numbers_of

LARGE_LOGITS = 30.0  # rows whose softmax is nearly one-hot, and scores far beyond exp's range
GQA_RATIO = 8
BAND = 128  # rows and keys that a boolean mask hides together: a block of the largest kernels


@dataclass(frozen=True, slots=True)
class Case:
    """One problem, how large its scores are, and how its tensors lie in memory."""

    name: str
    problem: AttentionProblem
    gain: float = 1.0  # factor of Q, and so of the scores
    placement: str = "contiguous"  # of check/placement.py
    nan: bool = False  # Q and V hold one NaN each

    @property
    def seed(self) -> int:
        """The same inputs for the same case, on every machine."""
        return zlib.crc32(f"{self.name} {self.problem}".encode())


Inputs = dict[str, NDArray[Any]]


@cache
def inputs_of(case: Case) -> Inputs:
    """The inputs as bits, indexed (batch, row, head, d) whatever the layout.

    What a forward pass gives is made of the others by one.
    """
    problem = case.problem
    random = np.random.default_rng(case.seed)
    results = {role.name for role in FORWARD.tensors if role.is_output}
    made: Inputs = {}
    for role in signature_of(problem).inputs(problem):
        name, shape = role.name, role.rows_first(problem)
        if name in results:
            continue
        if role.of:
            made[name] = drawn_table(role, problem, random)
            continue
        if role.is_scores:
            made[name] = drawn_bias(case, random)
            continue
        values = random.standard_normal(shape, np.float32) * (case.gain if name == "q" else 1.0)
        if case.nan and name != "k":
            values[-1, -1, -1, -1] = np.nan
        made[name] = to_bits(values, problem.dtype) if role.is_rows else values.view(np.uint32)
    if results & {role.name for role in signature_of(problem).inputs(problem)}:
        made |= _results_of(problem, made)
    for array in made.values():
        array.setflags(write=False)
    return made


def drawn_table(
    role: TensorRole, problem: AttentionProblem, random: np.random.Generator
) -> NDArray[np.uint32]:
    """Entries of a table as a model might have them: bits of float32 or int32."""
    shape = role.shape(problem)
    if role.name in ("q_lengths", "k_lengths", "k_starts"):
        most = {"q_lengths": problem.q_len, "k_starts": problem.k_len // 3}
        numbers = random.integers(0, most.get(role.name, problem.k_len) + 1, shape, np.int32)
        if problem.sequences and not problem.page:  # each has a part of the rows and keys
            numbers //= problem.sequences
    elif role.name in ("cu_seqlens_q", "cu_seqlens_k"):
        length = problem.q_len if role.name == "cu_seqlens_q" else problem.k_len
        numbers = drawn_boundaries(problem.sequences, length, random)
    elif role.name == "block_table":
        numbers = drawn_pages(problem, random)
    elif role.name == "alibi_slopes":
        numbers = random.uniform(0.0, 0.5, shape).astype(np.float32)
    else:
        numbers = random.standard_normal(shape, np.float32)
    return numbers.view(np.uint32)


# Which dimensions of a bias have more than one element, for each placement.
_BIAS_VARIES = {
    "contiguous": (True, True, True, True),
    "padded": (True, False, True, True),
    "transposed": (False, True, True, True),
    "packed": (True, False, False, True),
}


def drawn_bias(case: Case, random: np.random.Generator) -> NDArray[Any]:
    """A bias that hides a third of the keys, all from some rows, and half of them from others.

    A bool one hides whole blocks too.
    """
    problem = case.problem
    whole = (problem.batch, problem.heads, problem.q_len, problem.k_len)
    varies = _BIAS_VARIES[case.placement]
    shape = tuple(n if own else 1 for n, own in zip(whole, varies, strict=True))
    seen = random.random(shape) < 2 / 3
    if varies[2]:
        seen[:, :, 1::7] = False
        seen[:, :, 2::7, : problem.k_len // 2] = False
        seen[:, :, 3::7, problem.k_len // 2 :] = False
    if problem.bias == "bool":
        seen &= _bands(seen.shape, random)
        return np.broadcast_to(seen.astype(np.uint8), whole)
    numbers = random.standard_normal(shape, np.float32) * np.float32(2)
    # Models hide keys with -inf, or with the most negative number that there is.
    least = np.where(random.random(shape) < 0.5, -np.inf, np.float32(-3e38))
    numbers = np.where(seen, numbers, least).astype(np.float32)
    is_narrow = problem.bias == "same"
    bits = to_bits(numbers, problem.dtype) if is_narrow else numbers.view(np.uint32)
    return np.broadcast_to(bits, whole)


def _bands(shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.bool_]:
    """Of every BAND rows and BAND keys all are hidden, or none: more than half of them."""
    *outer, rows, keys = shape
    seen = random.random((*outer, -(-rows // BAND), -(-keys // BAND))) < 0.4
    whole = np.repeat(np.repeat(seen, BAND, axis=-2), BAND, axis=-1)
    return np.asarray(whole[..., :rows, :keys])


def drawn_boundaries(sequences: int, length: int, random: np.random.Generator) -> NDArray[np.int32]:
    """Where packed sequences begin: of any length, every fourth empty, every fourth of one row."""
    inner = np.sort(random.integers(0, length + 1, max(sequences - 1, 0)))
    for i in range(1, len(inner), 2):
        inner[i] = min(inner[i - 1] + i % 4 // 2, length)
    inner = np.maximum.accumulate(inner)
    return np.array([0, *inner, length], np.int32)


def drawn_pages(problem: AttentionProblem, random: np.random.Generator) -> NDArray[np.int32]:
    """Pages in any order; sequences share some where the pool has fewer than they have together."""
    shape = (problem.requests, problem.table_pages)
    rounds = -(-shape[0] * shape[1] // problem.pages)
    every = [random.permutation(problem.pages) for _ in range(rounds)]
    return np.concatenate(every)[: shape[0] * shape[1]].reshape(shape).astype(np.int32)


def _results_of(problem: AttentionProblem, made: Inputs) -> Inputs:
    """O and LSE of the forward pass, as bits."""
    forward = replace(problem, operation=FORWARD.operation, lse=True, dlse=False, dbias=False)
    roles = signature_of(forward).inputs(forward)
    given = {role.name: numbers_of(role, made[role.name], problem) for role in roles}
    found = same_precision(forward, given)
    return {"o": to_bits(found["o"], problem.dtype), "lse": found["lse"].view(np.uint32)}


def quick_cases(config: KernelConfig) -> tuple[Case, ...]:
    """Three cases for every run.

    Two have at least 3 key blocks, a ragged tail and an odd number of heads; of the first, every
    row sees the one key of the last block, and it writes no log-sum-exp: its kernel is also the
    one that tells a configuration's bits. The third is small and needs no further kernel: two
    sequences, rows that see no key, scores far beyond exp's range.
    """
    full = _problem(config, heads=3, q_len=config.tile_q + 9, k_len=3 * config.tile_k + 1)
    causal = replace(full, kv_heads=1, causal=True, k_len=3 * config.tile_k + 11)
    rows = max(config.tile_q, config.tile_k) + 9
    masked = replace(causal, batch=2, heads=1, q_len=rows, k_len=config.tile_k + 1)
    # Too few keys for slices: where these hand over parts, another case has two sequences too.
    batch = 2 if config.SLICES_KEYS else 1
    return (
        Case("ragged", replace(full, lse=False), placement="padded"),
        Case("causal gqa", replace(causal, batch=batch), placement="transposed"),
        Case("masked rows", masked, gain=LARGE_LOGITS),
    )


def full_cases(config: KernelConfig) -> tuple[Case, ...]:
    """Twelve cases; the compile-time facts of their problems come in five combinations only."""
    rows, keys, d_head = config.tile_q, config.tile_k, config.d_head
    block = max(rows, keys)
    even = _problem(config, heads=3, q_len=2 * rows, k_len=4 * keys)
    odd = replace(even, batch=2, q_len=3 * rows + 5, k_len=5 * keys + 7)
    causal = replace(odd, causal=True, q_len=3 * block + 13, k_len=3 * block + 13)
    return (
        Case("even", replace(even, lse=False, dlse=False)),
        Case("odd lengths", odd, placement="padded"),
        Case("large logits", odd, gain=LARGE_LOGITS),
        Case("one query", replace(odd, q_len=1)),
        Case("one key", replace(odd, q_len=rows + 1, k_len=1)),
        Case("packed", replace(odd, q_len=3 * block + 3, k_len=3 * block + 3), placement="packed"),
        Case("causal", causal, placement="transposed"),
        Case("causal gqa", replace(causal, heads=GQA_RATIO, kv_heads=1, q_len=rows + 9)),
        Case("masked rows", replace(causal, q_len=4 * block + 5, k_len=3 * keys + 1)),
        Case("top left", replace(causal, q_len=rows + 3, diagonal=0), gain=LARGE_LOGITS),
        Case("narrow", replace(odd, d_head=d_head // 2 + 8), placement="padded"),
        Case("half", replace(causal, d_head=d_head // 2, k_len=4 * block + 9)),
    )


def packed_cases(config: KernelConfig) -> tuple[Case, ...]:
    """Sequences packed one behind the other: long and short, of one row and of none, q unlike k."""
    rows, keys = config.tile_q, config.tile_k
    full = _problem(config, heads=3, q_len=4 * rows + 9, k_len=5 * keys + 5)
    full = replace(full, sequences=5)
    causal = replace(full, kv_heads=1, causal=True)
    short = replace(causal, heads=2, sequences=40, q_len=90, k_len=120)
    return (
        Case("sequences", full, placement="padded"),
        Case("causal sequences", causal, placement="transposed"),
        Case("short sequences", short, gain=LARGE_LOGITS),
        Case("one sequence", replace(causal, sequences=1, lse=False), placement="padded"),
        Case("narrow sequences", replace(full, d_head=config.d_head // 2 + 8)),
        Case("windows of sequences", replace(causal, window_left=keys // 2)),
    )


def bias_cases(config: KernelConfig) -> tuple[Case, ...]:
    """A bias of the caller's: each kind, at the strides that callers have, and with other facts."""
    rows, keys = config.tile_q, config.tile_k
    full = _problem(config, heads=3, q_len=rows + 9, k_len=3 * keys + 2)
    full = replace(full, batch=2, kv_heads=1)
    alike = replace(full, q_len=3 * keys + 1, k_len=3 * keys + 1)
    causal = replace(full, causal=True, k_len=3 * keys + 11)
    cases = (
        Case("seen by pairs", replace(full, bias="bool")),
        Case("padding", replace(alike, bias="bool"), placement="packed"),
        Case(
            "padding by pairs",
            replace(alike, bias="bool", q_len=2 * keys, k_len=2 * keys),
            placement="packed",
        ),
        Case("added by pairs", replace(full, bias="same"), gain=LARGE_LOGITS),
        Case("of all heads", replace(full, bias="same", k_len=3 * keys + 1), placement="padded"),
        Case(
            "added by key", replace(full, bias="float32", bias_keys="apart"), placement="transposed"
        ),
        Case("under a diagonal", replace(causal, bias="same", sinks=True, softcap=30.0)),
        Case("beside slopes", replace(causal, bias="float32", alibi=True, window_left=keys + 5)),
        Case("whole blocks", replace(full, bias="same", q_len=rows, k_len=2 * keys, lse=False)),
        Case("added by chunks", replace(full, bias="same", bias_keys="chunks", k_len=3 * keys + 8)),
    )
    more = () if FORWARD.operation == config.OPERATION else _of_bias(causal)
    return tuple(
        case
        for case in (*cases, *more)
        if not set(facts_that_hold(case.problem)) & set(config.REFUSED_FACTS)
    )


def _of_bias(problem: AttentionProblem) -> tuple[Case, ...]:
    """The gradient of a bias of each sequence and head, of all heads, and of all sequences."""
    own = replace(problem, bias="same", dbias=True, softcap=30.0)
    of_heads = replace(own, bias_shared="heads")
    of_batch = replace(own, bias="float32", bias_shared="batch", bias_keys="apart")
    return (
        Case("its gradient", own),
        Case("the gradient of all heads", of_heads, placement="padded"),
        Case("the gradient of all sequences", of_batch, placement="transposed"),
    )


def serving_cases(config: KernelConfig) -> tuple[Case, ...]:
    """Few query rows on many keys, as a server asks for; what the kernel refuses is left out."""
    keys, d_head = config.tile_k, config.d_head
    one = _problem(config, heads=8, q_len=1, k_len=3 * keys + 5)
    group = replace(one, heads=8, kv_heads=2)
    ragged = replace(group, batch=5, k_lengths=True)
    paged = replace(ragged, batch=3, page=16, pages=3 * one.k_len // 16)
    draft = replace(paged, q_len=5, heads=6, causal=True, page=12, pages=one.k_len // 4)
    packed = replace(draft, batch=1, q_len=config.tile_q + 31, sequences=4)
    cases = (
        Case("one token", replace(one, k_len=2 * keys, lse=False)),
        Case("group of 4", replace(group, k_len=2 * keys + 1), placement="padded"),
        Case("group of 7", replace(group, heads=7, kv_heads=1), gain=LARGE_LOGITS),
        Case("a few tokens", replace(group, q_len=5, causal=True), placement="transposed"),
        Case("lengths", ragged, placement="padded"),
        Case("many lengths", replace(ragged, batch=37, kv_heads=8, k_len=keys + 9)),
        Case("window", replace(ragged, causal=True, q_len=3, window_left=keys + 3)),
        Case("pages", paged, placement="padded"),
        Case("pages of a row", replace(paged, page=1, pages=one.k_len)),
        Case("pages and tokens", draft, placement="transposed"),
        Case("packed rows on pages", packed, placement="padded"),
        Case("narrow pages", replace(draft, d_head=d_head // 2 + 8, page=256, pages=40)),
    )
    return tuple(
        case
        for case in cases
        if not set(facts_that_hold(case.problem)) & set(config.REFUSED_FACTS)
        and not config.refused_problem(case.problem)
    )


def _problem(config: KernelConfig, *, heads: int, q_len: int, k_len: int) -> AttentionProblem:
    return AttentionProblem(
        batch=1,
        heads=heads,
        kv_heads=heads,
        q_len=q_len,
        k_len=k_len,
        d_head=config.d_head,
        dtype=config.dtype,
        operation=config.OPERATION,
        lse=FORWARD.operation == config.OPERATION,
        dlse=FORWARD.operation != config.OPERATION,
    )
