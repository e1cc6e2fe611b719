"""The one parameter of a kernel: a struct that is declared here and written into C++ from it."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter
from typing import ClassVar, NamedTuple

from flashsmith.base.fields import Declared
from flashsmith.base.loose_types import DataClass
from flashsmith.problem.attention import FACTS, AttentionProblem

_KIND = "flashsmith.argument"
# Bytes, alignment and struct format of each C++ type that an argument may have.
_TYPES = {
    "TensorMap": (128, 64, "128s"),
    "TensorArg": (32, 8, "Qqqq"),
    "ScoresArg": (40, 8, "Qqqqq"),
    "float*": (8, 8, "Q"),
    "u32*": (8, 8, "Q"),
    "const i32*": (8, 8, "Q"),
    "u64": (8, 8, "Q"),
    "i32*": (8, 8, "Q"),
    "i32": (4, 4, "i"),
    "float": (4, 4, "f"),
}


@dataclass(frozen=True, slots=True)
class TensorArg:
    """Where a 4-D tensor lies; strides count elements, the d_head stride is 1."""

    address: int
    batch_stride: int = 0
    seq_stride: int = 0
    head_stride: int = 0


@dataclass(frozen=True, slots=True)
class ScoresArg(TensorArg):
    """Where a tensor with an element a score lies; strides may be 0."""

    key_stride: int = 1

    def lie_by(self, count: int, element_bytes: int, k_len: int) -> bool:
        """Whether every `count` keys, from the first on, can be read at once, in every row."""
        strides = (self.batch_stride, self.seq_stride, self.head_stride)
        is_aligned = self.address % (count * element_bytes) == 0
        is_aligned = is_aligned and not any(stride % count for stride in strides)
        return is_aligned and self.key_stride == 1 and k_len % count == 0


NO_TENSOR = TensorArg(0)
NO_SCORES = ScoresArg(0)


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """A TMA tensor map in the terms of cuTensorMapEncodeTiled; innermost dimension first."""

    address: int
    element_bytes: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]  # of dimensions 1 and up
    box: tuple[int, ...]
    swizzle_bytes: int = 128  # 0 (none), 32, 64 or 128
    is_bf16: bool = True
    l2_promotion_bytes: int = 256


Encode = Callable[[TensorMapSpec], bytes]  # how a device writes a tensor map
_MAX_STRIDE_BYTES = 1 << 40  # of a tensor map: cuTensorMapEncodeTiled


def maps_obstacle(maps: Mapping[str, TensorMapSpec]) -> str:
    """Why a tensor cannot be described by its map (of that name, or with `_map`), or nothing."""
    for name, spec in maps.items():
        strides = spec.strides_bytes
        if any(not 0 < stride < _MAX_STRIDE_BYTES or stride % 16 for stride in strides):
            return (
                f"{name.removesuffix('_map')} has strides of {strides} bytes; a tensor map takes "
                f"multiples of 16 from 16 to 2^40; copy it or use a kernel without TMA"
            )
    return ""


class _Kind(NamedTuple):
    """A C++ type, and what the argument means."""

    cpp: str
    doc: str
    is_last: bool = False
    then: tuple[str, ...] = ()
    value: Callable[[AttentionProblem], float] | None = None  # where it follows from the problem


# What kernels are told of their problem: a struct says where it has them (`then`), no plan fills
# them in, and no struct declares them again.
_OF_PROBLEM = {
    "batch": _Kind("i32", "sequences", value=attrgetter("batch")),
    "heads": _Kind("i32", "query heads", value=attrgetter("heads")),
    "kv_heads": _Kind("i32", "divides heads", value=attrgetter("kv_heads")),
    "kv_group": _Kind(
        "i32", "query heads that share one head of K and V", value=attrgetter("group")
    ),
    "q_len": _Kind("i32", "query rows", value=attrgetter("q_len")),
    "k_len": _Kind("i32", "keys", value=attrgetter("k_len")),
    "d_head": _Kind("i32", "of the problem; at most the kernel's", value=attrgetter("d_head")),
    "scale_log2": _Kind(
        "float",
        "softmax scale times log2(e)",
        value=lambda problem: problem.softmax_scale * math.log2(math.e),
    ),
    "minus_inverse_scale": _Kind(
        "float", "-1 / softmax scale", value=lambda problem: -1.0 / problem.softmax_scale
    ),
}


def argument(cpp: str, doc: str, *, is_last: bool = False, then: tuple[str, ...] = ()) -> Declared:
    """A field of a kernel's arguments, of one of the C++ types in `_TYPES`.

    In the struct it is followed by the values of the problem that `then` names (`_OF_PROBLEM`).
    What `is_last` lies behind the values of facts, so that these stay where kernels find them.
    """
    return field(metadata={_KIND: _Kind(cpp, doc, is_last, then)})


class Arguments:
    """A frozen dataclass whose fields are arguments, in the order of the C++ struct.

    Between them stand the values of the problem that they name with `then`. Behind them come the
    run-time values of the problem's facts that have an `argument`, and last the fields that are
    declared so.
    """

    __slots__ = ()
    CPP_TYPE: ClassVar[str]
    CONSTANTS: ClassVar[Mapping[str, int]] = {}  # that both sides reckon with, by their C++ names

    @classmethod
    def cpp_struct(cls) -> str:
        """The C++ struct and its constants, written from the declarations."""
        kinds = _all_kinds(cls)
        lines = [f"    {kind.cpp} {name};  // {kind.doc}" for name, kind in kinds.items()]
        name = cls.CPP_TYPE.rpartition("::")[2]
        size = f'static_assert(sizeof({name}) == {cls.n_bytes()}, "the host packs this size.");'
        constants = [f"inline constexpr int {n} = {v};" for n, v in cls.CONSTANTS.items()]
        return "\n".join([f"struct {name} {{", *lines, "};", size, *constants])

    @classmethod
    def n_bytes(cls) -> int:
        """sizeof the C++ struct."""
        return _layout(cls).size

    def pack(self, problem: AttentionProblem, encode: Encode) -> bytes:
        """The bytes of the C++ struct."""
        values: list[object] = []
        own = _kinds(type(self))
        for name, kind in _all_kinds(type(self)).items():
            if kind.value:
                value = kind.value(problem)
            else:
                value = getattr(self, name) if name in own else getattr(problem, name) or 0
            if isinstance(value, TensorMapSpec):
                values.append(encode(value))
            elif isinstance(value, TensorArg):
                values += (value.address, value.batch_stride, value.seq_stride, value.head_stride)
                if isinstance(value, ScoresArg):
                    values.append(value.key_stride)
            else:
                values.append(value)
        return _layout(type(self)).pack(*values)


_kinds_of: dict[type, dict[str, _Kind]] = {}
_all_kinds_of: dict[type, dict[str, _Kind]] = {}
_layout_of: dict[type, struct.Struct] = {}


def _kinds(cls: DataClass) -> dict[str, _Kind]:
    if cls not in _kinds_of:
        _kinds_of[cls] = {f.name: f.metadata[_KIND] for f in fields(cls)}
    return _kinds_of[cls]


def _all_kinds(cls: DataClass) -> dict[str, _Kind]:
    """Every argument by name, in the order of the C++ struct."""
    if cls not in _all_kinds_of:
        _all_kinds_of[cls] = _ordered(_kinds(cls))
    return _all_kinds_of[cls]


def _ordered(own: dict[str, _Kind]) -> dict[str, _Kind]:
    last = {name: kind for name, kind in own.items() if kind.is_last}
    first: dict[str, _Kind] = {}
    for name, kind in own.items():
        if not kind.is_last:
            first |= {name: kind, **{then: _OF_PROBLEM[then] for then in kind.then}}
    return {**first, **_of_facts(), **last}


@cache
def _of_facts() -> dict[str, _Kind]:
    return {n: _Kind(what.argument, what.doc) for n, what in FACTS.items() if what.argument}


def _layout(cls: DataClass) -> struct.Struct:
    """The fields as C++ lays them out: each at a multiple of its alignment, the whole too."""
    if cls not in _layout_of:
        _layout_of[cls] = _laid_out(cls)
    return _layout_of[cls]


def _laid_out(cls: DataClass) -> struct.Struct:
    at, largest, text = 0, 1, "<"
    for kind in _all_kinds(cls).values():
        size, alignment, form = _TYPES[kind.cpp]
        gap = -at % alignment
        text += f"{gap}x{form}" if gap else form
        at += gap + size
        largest = max(largest, alignment)
    return struct.Struct(text + (f"{-at % largest}x" if at % largest else ""))
