"""What a traced call asks for, as a text: XLA keeps it with the compiled program.

A program may be compiled by one process and run by another, from JAX's cache of programs: all that
a call means is in the text, and nothing of it in the memory of the process that traced it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from flashsmith.api.options import CALL_FACTS, CallOptions, checked_options
from flashsmith.base.errors import Unsupported
from flashsmith.kernels.kernel import KernelConfig

VERSION = 1
_CALL_NAMES = {name: call_name for call_name, name in CALL_FACTS.items()}


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a call, the names of the arrays behind its rows, and what else it gives."""

    options: CallOptions
    tables: tuple[str, ...] = ()
    dbias: bool = False  # of a backward call: the gradient of the bias too

    def text(self) -> str:
        """All of it; equal ones have equal texts."""
        options, config = self.options, self.options.config
        told = {
            "version": VERSION,
            "facts": options.given(),
            "config": config.short_form() if isinstance(config, KernelConfig) else config,
            "backend": options.backend,
            "tables": self.tables,
        } | ({"dbias": True} if self.dbias else {})
        return json.dumps(told, sort_keys=True)


def read_asked(text: str) -> Asked:
    """The reverse of `Asked.text`; facts are checked as those of a call are."""
    told = json.loads(text)
    if told.get("version") != VERSION:
        raise Unsupported(
            "this program was compiled with another version of flashsmith; clear JAX's cache of "
            "compiled programs."
        )
    facts = {_CALL_NAMES[name]: value for name, value in told["facts"].items()}
    options = checked_options(config=told["config"], backend=told["backend"], **facts)
    return Asked(options, tuple(told["tables"]), bool(told.get("dbias", False)))
