"""What a kernel computes, as far as it is fixed at compile time; a configuration says how."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, order=True)
class ForwardTraits:
    """Compile-time facts of a problem; each False removes code that the problem does not need.

    Mirrored by `ForwardTraits` in cuda/include/flashsmith/attention/needs.cuh.
    """

    causal: bool = False  # mask keys right of the diagonal (its offset is a run-time argument)
    ragged_q: bool = False  # query length is no multiple of the query tile
    ragged_k: bool = False  # key length is no multiple of the key tile
    narrow_d: bool = False  # the problem's d_head is below the kernel's
    lse: bool = False  # write the log-sum-exp of every row

    def identifier(self) -> str:
        """Text for a kernel's name: the facts that hold, or `plain`."""
        return "_".join(f.name for f in fields(self) if getattr(self, f.name)) or "plain"

    def to_cpp_struct(self) -> str:
        """The C++ literal, with designated initialisers."""
        body = ", ".join(f".{f.name} = {str(getattr(self, f.name)).lower()}" for f in fields(self))
        return f"flashsmith::ForwardTraits{{{body}}}"

    def covers(self, needed: ForwardTraits) -> bool:
        """Whether a kernel of these traits computes a problem of `needed`.

        It does where it has every fact of it: predicates are then always true, a diagonal right of
        the last key masks nothing, and a null address takes no log-sum-exp.
        """
        return all(getattr(self, f.name) >= getattr(needed, f.name) for f in fields(self))
