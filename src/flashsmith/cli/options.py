"""Arguments and options that several verbs share, each defined once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from flashsmith import arch as arches
from flashsmith.base import settings
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.base.plain_text import shortened
from flashsmith.base.whole_number import whole_number
from flashsmith.cli.declared import Facts
from flashsmith.kernels import KernelConfig, resolve_key
from flashsmith.kernels.sets import named_sets
from flashsmith.kernels.width import require_width
from flashsmith.problem.attention import OPERATIONS, AttentionProblem


def refuse_together(given: Mapping[str, object]) -> None:
    """Raises when more than one of these was given: one of them would have no effect."""
    names = [name for name, value in given.items() if value]
    if len(names) > 1:
        raise ArgumentError(f"{names[0]} and {names[1]} are both given; drop one of them.")


def refuse_given(context: typer.Context, names: Sequence[str], reason: str) -> None:
    """Raises when one of these options, by its name in the verb, was given: it has no effect."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = next(p.opts[0] for p in context.command.params if p.name == name)
            raise ArgumentError(f"{option} is given {reason}; drop it.")


def _one_form(context: typer.Context, value: bool) -> bool:
    # Asked before the verb begins: a long run must not end in this.
    if value and (context.params.get("json") or context.params.get("csv")):
        raise ArgumentError("--json and --csv are both given; output has one form; drop one.")
    return value


def _not_empty(value: str | None) -> str | None:
    # An empty text is mostly a variable that is not set: what it asks for is not the default.
    if value is not None and not value.strip():
        raise ArgumentError(
            "KEY is an empty text; it must be a set such as tune, a short form or @file; name "
            "one, or leave it out."
        )
    return value


DEFAULT_KEY = "{default}"  # in help texts: where the command line puts each verb's own
OpOption = Annotated[
    str | None,
    typer.Option("--op", help="forward or backward; without it what KEY computes, or forward."),
]
KeyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[KEY]",
        callback=_not_empty,
        help=f"A set ({', '.join(named_sets())}, or B_r,B_c; joined by +), a short form, or "
        f"@file of short forms. Without it: the environment variable KERNELS, else {DEFAULT_KEY}.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Write one JSON array of flat objects.", callback=_one_form)
]
CsvOption = Annotated[
    bool, typer.Option("--csv", help="Write CSV with the same columns.", callback=_one_form)
]
AllOption = Annotated[bool, typer.Option("--all", help="Show every row of the table, not ten.")]
ArchOption = Annotated[
    str, typer.Option("--arch", help="Architecture: sm_80, 86, 89, 90a, 100a or 120.")
]
BatchOption = Annotated[int, typer.Option("--batch", min=0, help="Sequences in the batch.")]
HeadsOption = Annotated[int, typer.Option("--heads", min=1, help="Query heads.")]
KvHeadsOption = Annotated[
    int | None,
    typer.Option("--kv-heads", min=1, help="Key and value heads; without it those of --heads."),
]
KLenOption = Annotated[
    int | None,
    typer.Option("--k-len", min=0, help="Key rows; without it the number of query rows."),
]
DHeadOption = Annotated[
    int | None,
    typer.Option(
        "--d-head", "--d-heads", min=1, help="Head dimension; without it the configuration's."
    ),
]
SeqLensOption = Annotated[
    str, typer.Option("--seq-lens", "--seq-len", help="Lengths, as in 1024,4096; Sq = Sk.")
]
DHeadsOption = Annotated[
    str, typer.Option("--d-heads", "--d-head", help="Head dimensions, as in 64,128.")
]
DTypeOption = Annotated[str, typer.Option("--dtype", help="bf16 or fp16.")]
BothMasksOption = Annotated[
    bool, typer.Option("--both-masks", help="Every problem with the full and the causal mask.")
]
TOKENS, WIDTH = 16384, 2048  # batch x length and heads x d_head, where they are not given
GridBatchOption = Annotated[
    int | None, typer.Option("--batch", min=1, help=f"Sequences; else batch x length = {TOKENS}.")
]
GridHeadsOption = Annotated[
    int | None, typer.Option("--heads", min=1, help=f"Query heads; else heads x d_head = {WIDTH}.")
]
ROUNDS = 21
RoundsOption = Annotated[
    int | None,
    typer.Option("--rounds", min=15, help=f"Rounds of timing on a GPU; without it {ROUNDS}."),
]
SustainedOption = Annotated[
    bool, typer.Option("--sustained", help="Under load (0.3 s of it first) instead of rested.")
]
AppendOption = Annotated[
    Path | None, typer.Option("-o", help="Append records to this JSON lines file.")
]
StoreOption = Annotated[
    Path | None, typer.Option("--store", help="The results file; without it FLASHSMITH_RESULTS.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option("--device", help="cuda or emulator; without it a GPU if there is one."),
]


def configs_of(key: str | None, default: str) -> list[KernelConfig]:
    """The configurations of KEY, else of KERNELS, else of the verb's default."""
    return resolve_key(key or settings.kernels_key() or default)


def arch_of(name: str) -> arches.Arch:
    """The architecture an option names."""
    return arches.get(name)


def problem_of(
    *,
    batch: int,
    heads: int,
    kv_heads: int | None,
    q_len: int,
    k_len: int | None,
    d_head: int,
    dtype: DType,
    facts: Facts,
) -> AttentionProblem:
    """The problem that the shared options describe."""
    if facts.get("diagonal") is not None and not facts.get("causal"):
        raise ArgumentError(
            f"--diagonal is {facts['diagonal']} without --causal; it moves the causal mask; add "
            f"--causal."
        )
    require_width(d_head, "choose one of these")
    return AttentionProblem(
        batch=batch,
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        q_len=q_len,
        k_len=q_len if k_len is None else k_len,
        d_head=d_head,
        dtype=dtype,
        **facts,
    )


def operations_of(op: str | None, key: str | None) -> list[str]:
    """What is computed: --op, or what the kernels of KEY compute; without both, forward."""
    own = list(dict.fromkeys(config.OPERATION for config in resolve_key(key))) if key else []
    if op is None:
        return own or [*OPERATIONS][:1]
    if op not in OPERATIONS:
        raise ArgumentError(f"--op is {op!r}; it must be {' or '.join(OPERATIONS)}.")
    if own and op not in own:
        raise ArgumentError(
            f"--op is {op!r} and the kernels of {key} compute the {own[0]} pass; drop one of them."
        )
    return [op]


def problems_of(
    *,
    seq_lens: str,
    d_heads: str,
    batch: int | None,
    heads: int | None,
    kv_heads: int | None,
    both_masks: bool = False,
    dtype: str,
    facts: Facts,
    operations: Sequence[str] = ("forward",),
) -> list[AttentionProblem]:
    """The grid of self-attention problems that the shared options describe."""
    refuse_together({"--causal": facts.get("causal"), "--both-masks": both_masks})
    masks = ({"causal": False}, {"causal": True}) if both_masks else ({},)
    return [
        problem_of(
            batch=batch or max(TOKENS // length, 1),
            heads=heads or max(WIDTH // d_head, 1),
            kv_heads=kv_heads,
            q_len=length,
            k_len=None,
            d_head=d_head,
            dtype=dtype_of(dtype),
            facts={**facts, **mask, "operation": operation},
        )
        for operation in operations
        for d_head in numbers_of("--d-heads", d_heads)
        for length in numbers_of("--seq-lens", seq_lens)
        for mask in masks
    ]


def numbers_of(option: str, text: str) -> list[int]:
    """The positive numbers of a list such as `1024,4096`."""
    numbers = [whole_number(part.strip()) for part in text.split(",")]
    if not all(numbers):
        raise ArgumentError(
            f"{option} is {shortened(text)!r}; it must be a list of numbers above 0, such as "
            f"1024,4096."
        )
    return [number for number in numbers if number]


def dtype_of(text: str) -> DType:
    """The element type an option names."""
    found = DType.__members__.get(text.upper())
    if found is None:
        raise ArgumentError(f"--dtype is {text!r}; it must be bf16 or fp16.")
    return found
