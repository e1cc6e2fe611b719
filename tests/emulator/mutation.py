"""Mutants of PTX text: one place changed at a time, and whether a run of each is noticed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.options import EmulatorOptions

Run = Callable[[str, EmulatorOptions], np.ndarray]
IsRight = Callable[[np.ndarray], bool]


@dataclass(frozen=True)
class Mutant:
    """One changed place of a kernel."""

    kind: str
    place: str  # the PTX line that was changed, and which of its like
    ptx: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.place}"


@dataclass(frozen=True)
class Verdict:
    """How a mutant was noticed, if it was."""

    noticed: bool
    how: str  # kind of the fault, "wrong numbers", or ""
    schedule: str  # "in order", or the seed that showed it


def mutants(ptx: str, kind: str, pattern: str, replacement: str) -> list[Mutant]:
    """A mutant for each place where `pattern` matches inside a line."""
    found = []
    for number, match in enumerate(re.finditer(pattern, ptx, re.MULTILINE)):
        changed = ptx[: match.start()] + match.expand(replacement) + ptx[match.end() :]
        line = match.group(0).strip().splitlines()[0].split("{")[0][:60]
        found.append(Mutant(kind, f"{line} #{number + 1}", changed))
    assert found, f"{kind}: nothing matches {pattern!r}"
    return found


def dropped(ptx: str, kind: str, pattern: str) -> list[Mutant]:
    """A mutant for each line that `pattern` matches, without that line."""
    return mutants(ptx, kind, rf"^[ \t]*(?:{pattern})[^;]*;", "")


def thinned(found: list[Mutant], *, most: int = 3, once: Collection[str] = ()) -> list[Mutant]:
    """The first, middle and last mutants of each kind: the steps of an unrolled loop are alike.

    Of the kinds in `once`, which run through every schedule unnoticed, one is kept.
    """
    by_kind: dict[str, list[Mutant]] = {}
    for mutant in found:
        by_kind.setdefault(mutant.kind, []).append(mutant)
    kept = []
    for kind, like in by_kind.items():
        if kind in once:
            like = like[:1]
        elif len(like) > most:
            last = len(like) - 1
            like = [like[round(place * last / (most - 1))] for place in range(most)]
        kept += like
    return kept


def judge(mutant: str, run: Run, is_right: IsRight, seeds: Iterable[int] = range(4)) -> Verdict:
    """Runs a text in order, then in random schedules with late landings, until it is noticed."""
    schedules = [("in order", EmulatorOptions())]
    schedules += [
        (f"seed {seed}", EmulatorOptions(seed=seed, delayed_landing=True)) for seed in seeds
    ]
    for name, options in schedules:
        try:
            out = run(mutant, options)
        except EmulationError as fault:
            return Verdict(True, fault.kind, name)
        if not is_right(out):
            return Verdict(True, "wrong numbers", name)
    return Verdict(False, "", "")
