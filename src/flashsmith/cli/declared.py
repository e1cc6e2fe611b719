"""Options that follow from declarations: a problem's facts, and what is compiled into a kernel."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Annotated, Any

import typer

from flashsmith.base.loose_types import FactValue
from flashsmith.problem.attention import FACTS
from flashsmith.problem.needs import NEEDS, Needs

Facts = dict[str, FactValue]  # by name; absent ones are left out
OptionValue = Any  # Any: of each option's type
NONE = Needs()  # what a verb's parameter has where users see options
Verb = Callable[..., None]


FACT_OPTIONS = {name: what for name, what in FACTS.items() if what.option}


def takes_facts(verb: Verb) -> Verb:
    """Adds an option for every fact that has one; the verb is given them as `facts`."""
    named = FACT_OPTIONS

    def gather(given: dict[str, OptionValue]) -> Facts:
        found = {name: given.pop(name) for name in named}
        return {name: value for name, value in found.items() if value != named[name].absent}

    added = [
        _option(name, what.kind if what.absent is not None else what.kind | None, what.absent)(
            what.option, what.doc
        )
        for name, what in named.items()
    ]
    return _with_options(verb, "facts", added, gather)


def takes_needs(verb: Verb) -> Verb:
    """Adds a flag for everything that is compiled in; the verb is given `needs`."""

    def gather(given: dict[str, OptionValue]) -> Needs:
        return Needs(tuple(name for name in NEEDS if given.pop(name)))

    added = [
        _option(name, bool, False)(f"--{name.replace('_', '-')}", doc)
        for name, doc in NEEDS.items()
    ]
    return _with_options(verb, "needs", added, gather)


def _option(name: str, kind: object, default: object) -> Callable[[str, str], Parameter]:
    def make(option: str, doc: str) -> Parameter:
        text = f"{doc[0].upper()}{doc[1:]}."
        annotation = Annotated[kind, typer.Option(option, help=text)]  # type: ignore[valid-type]
        return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    return make


def _with_options(
    verb: Verb,
    name: str,
    added: Iterable[Parameter],
    gather: Callable[[dict[str, OptionValue]], object],
) -> Verb:
    """The verb with parameter `name` in place of options, which its users see instead."""
    own = inspect.signature(verb, eval_str=True)
    kept = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own.parameters.values()]
    at = next(position for position, p in enumerate(kept) if p.name == name)
    parameters = [*kept[:at], *added, *kept[at + 1 :]]

    @functools.wraps(verb)
    def command(**given: OptionValue) -> None:
        given[name] = gather(given)
        verb(**given)

    # typer looks at both.
    command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command
