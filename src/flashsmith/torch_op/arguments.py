"""The operators' arguments beside the tensors: the options of a call in torch's schema."""

from __future__ import annotations

from flashsmith.api.options import BACKENDS, CALL_FACTS, COMMON, LSE, CallOptions, checked_fact
from flashsmith.base.errors import ArgumentError
from flashsmith.base.loose_types import FactValue
from flashsmith.problem.attention import FACTS

# The log-sum-exp is asked for by the operator's name, not by an argument.
_NAMES = tuple(name for name in CALL_FACTS.values() if name != "lse")
_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}
Argument = FactValue  # or the text of the configuration or the backend
# Values of the facts in `_NAMES`, then configuration and backend, without defaults at the end.
Given = tuple[Argument, ...]
_LAYOUT = _NAMES.index("layout")
DEFAULTS = (*(FACTS[name].absent for name in _NAMES), "", "")


def schema() -> str:
    """The arguments as torch declares them, written from the facts."""
    facts = [_argument(name) for name in _NAMES]
    return ", ".join([*facts, 'str config=""', 'str backend=""'])


def _argument(name: str) -> str:
    what = FACTS[name]
    optional = "?" if what.absent is None else ""
    default = f'"{what.absent}"' if isinstance(what.absent, str) else what.absent
    return f"{_TYPES[what.kind]}{optional} {name}={default}"


def given_of(options: CallOptions) -> Given:
    """The options of a call as the operators take them.

    Defaults at the end are left away, as torch does before an operator's kernel: each argument
    costs a call a hundred nanoseconds.
    """
    facts, config, backend = options
    if config is None and backend is None:
        found = _SHORT.get(facts)
        if found is None:
            found = _shortened((*facts[:LSE], *facts[LSE + 1 :]))
        return found
    config = config or ""
    text = config if isinstance(config, str) else config.short_form()
    given = (*facts[:LSE], *facts[LSE + 1 :], text)
    return (*given, backend) if backend else given


def _shortened(given: Given) -> Given:
    end = len(given)
    while end and given[end - 1] == DEFAULTS[end - 1]:
        end -= 1
    return given[:end]


# What most calls ask for; the rest is written out each time.
_SHORT = {
    options.facts: _shortened((*options.facts[:LSE], *options.facts[LSE + 1 :]))
    for options in COMMON.values()
}


def without_config(given: Given) -> Given:
    """The same without the configuration: it names kernels of the other pass."""
    position = len(_NAMES)
    return (*given[:position], "", *given[position + 1 :]) if len(given) > position else given


def layout_of(given: Given) -> str:
    """The layout among an operator's arguments, without a look at the others."""
    return str(given[_LAYOUT] if len(given) > _LAYOUT else DEFAULTS[_LAYOUT])


def options_of(given: Given, *, lse: bool) -> CallOptions:
    """The options that an operator was given; torch leaves trailing defaults away."""
    values = dict(
        zip((*_NAMES, "config", "backend"), (*given, *DEFAULTS[len(given) :]), strict=True)
    )
    config, backend = values.pop("config") or None, values.pop("backend") or None
    if backend not in BACKENDS:
        raise ArgumentError(f"backend is {backend!r}; it must be '', 'cuda' or 'emulator'.")
    facts = {name: checked_fact(name, FACTS[name], value) for name, value in values.items()}
    facts["lse"] = lse
    return CallOptions(tuple(facts[name] for name in CALL_FACTS.values()), config, backend)
