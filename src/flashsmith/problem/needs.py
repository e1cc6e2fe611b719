"""What of a problem is compiled into a kernel; a configuration says how, the needs say what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flashsmith.base.errors import ArgumentError
from flashsmith.problem.attention import FACTS, AttentionProblem

# Of a problem and a kernel's tiles together; each that does not hold removes code.
OF_TILES = {
    "ragged_q": "the query length is not a multiple of the query tile",
    "ragged_k": "the key length is not a multiple of the key tile",
    "narrow_d": "the problem's d_head is below the kernel's",
}
# Of how a plan lays a problem out; a kernel made for it computes nothing else.
OF_LAUNCHES = {"sliced": "q tiles may be cut along the keys, each by its own span"}
# A fact that is a text is another need for each of its values, with the name of both.
_VALUES = {
    f"{name}_{value}": (name, value)
    for name, what in FACTS.items()
    for value in what.choices
    if what.compiled and value != what.absent
}
BIAS_CHUNK = 8  # keys of a bias of 16 bits that lie in 16 bytes
_READ_BEFORE = ("q_lengths", "k_starts")  # by the launch that lists tiles; no other knows of them
_COMPILED = {
    name: (name, None)
    for name, what in FACTS.items()
    if what.compiled and not what.choices and name not in _READ_BEFORE
}
_OF = {**_COMPILED, **_VALUES}
OF_FACTS = {
    need: FACTS[name].doc if value is None else f"{name} {FACTS[name].choices[value]}"
    for need, (name, value) in _OF.items()
}
NEEDS = {**OF_FACTS, **OF_TILES, **OF_LAUNCHES}
_SCORES = [need for need, (name, _) in _OF.items() if FACTS[name].changes_scores]
_EXACT = [*(need for need, (name, _) in _OF.items() if FACTS[name].exact), *OF_LAUNCHES]


@dataclass(frozen=True, slots=True, order=True)
class Needs:
    """The needs that hold, each once, in the order of `NEEDS`."""

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in NEEDS]
        if unknown:
            raise ArgumentError(f"{unknown[0]!r} is not a need; there are {', '.join(NEEDS)}.")
        object.__setattr__(self, "names", tuple(name for name in NEEDS if name in self.names))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def identifier(self) -> str:
        """Text for a kernel's name: the needs that hold, or `plain`."""
        return "_".join(self.names) or "plain"

    def covers(self, needed: Needs) -> bool:
        """Whether a kernel with these computes a problem that needs `needed`.

        It does where it has all of them: predicates are then always true, a diagonal right of the
        last key masks nothing, and a null address takes no log-sum-exp. What is exact must be the
        same: a kernel that changes scores or reads a table computes nothing else.
        """
        more = set(self.names) - set(needed.names)
        return set(needed.names) <= set(self.names) and not more & set(_EXACT)

    def gives_bits_of(self, needed: Needs) -> bool:
        """Whether a kernel with these computes, bit for bit, what one with `needed` does.

        What tiles need are predicates, which change nothing where they are always true. A fact is
        more: a causal kernel may take the keys in another order, one with a log-sum-exp sums rows
        in another way.
        """
        return self.covers(needed) and set(self.names) - set(needed.names) <= set(OF_TILES)

    def to_cpp(self) -> str:
        """The C++ literal, with designated initialisers."""
        body = ", ".join(f".{name} = {str(name in self).lower()}" for name in NEEDS)
        return f"flashsmith::Needs{{{body}}}"

    @staticmethod
    def cpp_struct() -> str:
        """The C++ struct, written from the declarations."""
        lines = [f"    bool {name} = required<bool>();  // {doc}" for name, doc in NEEDS.items()]
        changed = " || ".join(_SCORES) or "false"
        covered = " && ".join(
            f"{name} {'==' if name in _EXACT else '>='} needed.{name}" for name in NEEDS
        )
        none = ", ".join("false" for _ in NEEDS)
        methods = [
            f"    constexpr bool changes_scores() const {{ return {changed}; }}",
            f"    constexpr bool covers(const Needs& needed) const {{ return {covered}; }}",
            f"    static constexpr Needs none() {{ return {{{none}}}; }}",
        ]
        return "\n".join(["struct Needs {", *lines, "", *methods, "};"])


def changed_scores(problem: AttentionProblem) -> list[str]:
    """The facts of a problem that change its scores."""
    return [name for name in facts_that_hold(problem) if FACTS[name].changes_scores]


def facts_that_hold(problem: AttentionProblem) -> list[str]:
    """The optional facts of a problem that have another value than their absent one."""
    return [n for n, f in FACTS.items() if f.is_optional and getattr(problem, n) != f.absent]


def exact_facts(problem: AttentionProblem) -> list[str]:
    """The facts of a problem that only a kernel made for them computes."""
    return [name for name in facts_that_hold(problem) if FACTS[name].exact]


def needs_of(problem: AttentionProblem, *, tile_q: int, tile_k: int, d_head: int) -> Needs:
    """What a kernel with these tiles must know of `problem` when it is compiled."""
    holds = {
        "ragged_q": problem.q_len % tile_q != 0 or problem.sequences > 0 or problem.q_lengths,
        "ragged_k": problem.k_len % tile_k != 0 or problem.has_own_lengths,
        "narrow_d": problem.d_head < d_head,
    }
    for need, (name, value) in _OF.items():
        given = getattr(problem, name)
        holds[need] = given != FACTS[name].absent if value is None else given == value
    is_apart = problem.bias_keys == "apart" or problem.k_len % 2 != 0
    holds["bias_keys_apart"] = bool(problem.bias) and is_apart
    # Elements of 16 bits: those of another size take as many registers, or fewer loads already.
    holds["bias_keys_chunks"] &= problem.bias == "same" and problem.k_len % BIAS_CHUNK == 0
    if problem.is_listed:  # what of the tables it is made of, a list does not say
        holds["k_lengths"] = not problem.sequences
    # A mask that hides nothing needs no code; where lengths are in memory, that is not known.
    mask, unknown = problem.mask, problem.has_own_lengths
    holds["causal"] = mask.right is not None if unknown else mask.hides_right
    holds["window_left"] = mask.left is not None if unknown else mask.hides_left
    return Needs(tuple(name for name, it_does in holds.items() if it_does))
