"""What an operation takes and gives: its tensors by name, with their shapes for a problem."""

from __future__ import annotations

from typing import NamedTuple

from flashsmith.problem.attention import AttentionProblem

WORD_BYTES = 4  # of a number a row, and of an entry of a table
BIAS = "bias"  # the tensor with an element a score


class TensorRole(NamedTuple):
    """One tensor of an operation: rows of elements, a number a row or a score, or a table.

    A table has a fact's number of entries in each dimension, 32 bits each, without gaps. What has
    an element a score is (batch, heads, q_len, k_len) of any strides, 0 where it is broadcast.
    """

    name: str
    heads: str = ""  # the fact that says how many: heads or kv_heads
    rows: str = ""  # q_len or k_len
    width: str = "d_head"  # or v_width: elements of a row
    is_output: bool = False
    is_statistics: bool = False
    asked_by: str = ""  # the fact that makes it part of a call; empty: it always is
    unless: str = ""  # the fact that takes its place
    of: tuple[str, ...] = ()  # a table's dimensions, by the names of facts
    is_integer: bool = False  # entries of a table are int32, not float32
    is_scores: bool = False  # an element a score, in the type that its fact names

    @property
    def is_rows(self) -> bool:
        """Whether it has rows of elements."""
        return not (self.is_statistics or self.of or self.is_scores)

    def is_part_of(self, problem: AttentionProblem) -> bool:
        """Whether a call of this problem has it."""
        asked = not self.asked_by or getattr(problem, self.asked_by)
        return bool(asked and not (self.unless and getattr(problem, self.unless)))

    def shape(self, problem: AttentionProblem) -> tuple[int, ...]:
        """The shape in the problem's layout; a number a row is (batch, heads, rows) in each."""
        if self.of:
            return tuple(getattr(problem, name) for name in self.of)
        if self.is_scores:
            return problem.batch, problem.heads, problem.q_len, problem.k_len
        batch, rows, heads, *d_head = self.rows_first(problem)
        if self.is_statistics or problem.layout == "bshd":
            return batch, rows, heads, *d_head
        return batch, heads, rows, *d_head

    def rows_first(self, problem: AttentionProblem) -> tuple[int, ...]:
        """The shape indexed (batch, row, head, d), whatever the layout.

        What has an element a score stays (batch, head, row, key).
        """
        if self.of or self.is_scores:
            return self.shape(problem)
        heads, rows = getattr(problem, self.heads), getattr(problem, self.rows)
        width = getattr(problem, self.width)
        if self.is_statistics:
            return problem.batch, heads, rows
        if problem.page and self.rows == "k_len":
            return problem.pages, problem.page, heads, width
        return problem.batch, rows, heads, width

    def element_bytes(self, problem: AttentionProblem) -> int:
        """Bytes of one element."""
        if self.is_scores and problem.bias == "bool":
            return 1
        is_narrow = self.is_rows or (self.is_scores and problem.bias == "same")
        return problem.dtype.bytes if is_narrow else WORD_BYTES


class Signature(NamedTuple):
    """The tensors of an operation, inputs before outputs."""

    operation: str
    products: int  # of matrices as large as Q Kᵀ that the operation is made of
    tensors: tuple[TensorRole, ...]

    def of(self, problem: AttentionProblem) -> tuple[TensorRole, ...]:
        """The tensors of a call: one that the problem does not ask for is not among them."""
        return tuple(t for t in self.tensors if t.is_part_of(problem))

    def inputs(self, problem: AttentionProblem) -> tuple[TensorRole, ...]:
        """What a call is given."""
        return tuple(t for t in self.of(problem) if not t.is_output)

    def outputs(self, problem: AttentionProblem) -> tuple[TensorRole, ...]:
        """What a call writes."""
        return tuple(t for t in self.of(problem) if t.is_output)


# What a call brings beside rows, where a fact asks for it.
_TABLES = (
    TensorRole("sinks", of=("heads",), asked_by="sinks"),
    TensorRole("alibi_slopes", of=("requests", "heads"), asked_by="alibi"),
    TensorRole(BIAS, "heads", "q_len", asked_by="bias", is_scores=True),
    TensorRole("k_lengths", of=("requests",), asked_by="k_lengths", is_integer=True),
    TensorRole("q_lengths", of=("requests",), asked_by="q_lengths", is_integer=True),
    TensorRole("k_starts", of=("requests",), asked_by="k_starts", is_integer=True),
    TensorRole("cu_seqlens_q", of=("boundaries",), asked_by="sequences", is_integer=True),
    TensorRole(
        "cu_seqlens_k", of=("boundaries",), asked_by="sequences", unless="page", is_integer=True
    ),
    TensorRole("block_table", of=("requests", "table_pages"), asked_by="page", is_integer=True),
)
TABLES = {role.name: role for role in _TABLES}

FORWARD = Signature(
    "forward",
    2,  # Q Kᵀ, P V
    (
        TensorRole("q", "heads", "q_len"),
        TensorRole("k", "kv_heads", "k_len"),
        TensorRole("v", "kv_heads", "k_len", width="v_width"),
        *_TABLES,
        TensorRole("o", "heads", "q_len", width="v_width", is_output=True),
        TensorRole("lse", "heads", "q_len", is_output=True, is_statistics=True, asked_by="lse"),
    ),
)
BACKWARD = Signature(
    "backward",
    5,  # Q Kᵀ, dO Vᵀ, dS K, dSᵀ Q, Pᵀ dO
    (
        TensorRole("q", "heads", "q_len"),
        TensorRole("k", "kv_heads", "k_len"),
        TensorRole("v", "kv_heads", "k_len"),
        TensorRole("o", "heads", "q_len"),
        TensorRole("lse", "heads", "q_len", is_statistics=True),
        TensorRole("do", "heads", "q_len"),
        TensorRole("dlse", "heads", "q_len", is_statistics=True, asked_by="dlse"),
        *_TABLES,
        TensorRole("dq", "heads", "q_len", is_output=True),
        TensorRole("dk", "kv_heads", "k_len", is_output=True),
        TensorRole("dv", "kv_heads", "k_len", is_output=True),
        TensorRole(
            "dbias",
            of=("bias_sequences", "bias_heads", "q_len", "k_len"),
            asked_by="dbias",
            is_output=True,
        ),
    ),
)
SIGNATURES = {signature.operation: signature for signature in (FORWARD, BACKWARD)}


def signature_of(problem: AttentionProblem) -> Signature:
    """The signature of the operation that a problem is of."""
    return SIGNATURES[problem.operation]
