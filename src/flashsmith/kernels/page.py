"""docs/configuration.md, written from the knobs, rules and sets themselves."""

from __future__ import annotations

from flashsmith.base.fields import legal_text
from flashsmith.kernels.catalogue import CATALOGUE
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.rules import Rule
from flashsmith.kernels.sets import named_sets
from flashsmith.kernels.short_form import form_text
from flashsmith.problem.attention import FACTS

_HEAD = """\
# Configurations

Written by `flashsmith configs --page`; a test compares. A configuration says *how* one kernel
works; *what* is computed (shapes, mask, heads) is the problem. A field takes its legal values and
nothing else. A configuration that a *build* rule refuses can be written and asked about, but not
compiled; one that an *autotune* rule refuses can be built and is not worth measuring.
`flashsmith configs --why "<short form>"` answers for one configuration."""


def configuration_page() -> str:
    """The whole page as Markdown."""
    parts = [
        _HEAD,
        _facts_section(),
        *(_family_section(family) for family in CATALOGUE),
        _sets_section(),
    ]
    return "\n\n".join(parts)


def _facts_section() -> str:
    lines = [
        "## What a problem is",
        "",
        "| fact | values | without it | in a call | on the command line | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for name, what in FACTS.items():
        absent = f"`{what.absent}`" if what.is_optional else "always given"
        call = f"`{what.call}=`" if what.call else "the tensors say it"
        option = f"`{what.option}`" if what.option else ""
        lines.append(f"| `{name}` | {what.wanted()} | {absent} | {call} | {option} | {what.doc} |")
    return "\n".join(lines)


def _family_section(family: type[KernelConfig]) -> str:
    first = next(iter(next(iter(family.named_sets().values()))()))
    return "\n\n".join(
        [
            f"## {family.NAME}: `{family.__name__}`",
            f"Short form: `{form_text(family)}`, for example `{first.short_form()}`.",
            _knob_table(family),
            f"### What cannot be built\n\n{_rule_table(family.BUILD_RULES)}",
            f"### What is not worth measuring\n\n{_rule_table(family.AUTOTUNE_RULES)}",
        ]
    )


def _knob_table(family: type[KernelConfig]) -> str:
    lines = ["| field | written | values | meaning |", "|---|---|---|---|"]
    for name, what in family.knobs().items():
        written = f"`{what.word}`" if what.word else "in the parentheses"
        lines.append(f"| `{name}` | {written} | {legal_text(what.values)} | {what.doc} |")
    return "\n".join(lines)


def _rule_table(rules: tuple[Rule, ...]) -> str:
    lines = ["| rule | why | instead |", "|---|---|---|"]
    lines += [f"| `{rule.name}` | {rule.reason} | {rule.advice} |" for rule in rules]
    return "\n".join(lines)


def _sets_section() -> str:
    lines = ["## Sets that a KEY names", "", "| key | configurations |", "|---|---|"]
    lines += [f"| `{name}` | {len(make())} |" for name, make in named_sets().items()]
    lines += [
        "",
        "`B_r,B_c` (as `64,32`) is the part of `tune` with these blocks. A KEY may also be a short",
        "form, or `@file` with one short form per line (`#` begins a comment). Without a KEY, the",
        "environment variable `KERNELS` is asked.",
    ]
    return "\n".join(lines)
