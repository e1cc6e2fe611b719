"""The loop of wgmma products in a kernel's SASS, and what spoils it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"^\s*(\.L_\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,6})\*/\s+(.*?)\s*;")
_JUMP = re.compile(r"\bBRA\b.*`\((\.L_\w+)\)")
_PREDICATE = re.compile(r"^@!?U?P\w+\s+")
PRODUCT = "HGMMA"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction."""

    address: int
    text: str

    @property
    def opcode(self) -> str:
        """The mnemonic with its modifiers, without a predicate before it."""
        return _PREDICATE.sub("", self.text).split(" ", 1)[0]


def wgmma_loop(sass: str) -> tuple[Instruction, ...]:
    """The shortest loop that multiplies, or nothing."""
    code, labels = _parse(sass)
    bodies = []
    for end, instruction in enumerate(code):
        jump = _JUMP.search(instruction.text)
        start = labels.get(jump[1]) if jump else None
        if start is not None and start <= end:
            bodies.append(code[start : end + 1])
    return next((body for body in sorted(bodies, key=len) if any(map(_is_product, body))), ())


def wgmma_faults(sass: str) -> list[str]:
    """What costs a wgmma kernel its speed: ptxas took uniform control flow for divergent.

    Descriptors then lie in vector registers and are moved (R2UR) between the products; a loop of
    2,089 cycles took 2,579 (H200, 2026-11, d_head 128, 192 by 80).
    """
    code, _ = _parse(sass)
    everywhere = [n for n, instruction in enumerate(code) if _is_product(instruction)]
    consumers = code[everywhere[0] : everywhere[-1]] if everywhere else ()
    faults = [f"{i.opcode} at {i.address:#x}" for i in consumers if i.opcode == "BRA.DIV"]
    body = wgmma_loop(sass)
    products = [n for n, instruction in enumerate(body) if _is_product(instruction)]
    if products:
        faults += [
            f"{i.opcode} at {i.address:#x} between products"
            for i in body[products[0] : products[-1]]
            if i.opcode.startswith("R2UR")
        ]
    return faults


def _is_product(instruction: Instruction) -> bool:
    return instruction.opcode.startswith(PRODUCT)


def _parse(sass: str) -> tuple[tuple[Instruction, ...], dict[str, int]]:
    """Instructions in order, and the place each label stands before."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        label, found = _LABEL.match(line), _INSTRUCTION.match(line)
        if label:
            labels[label[1]] = len(code)
        elif found:
            code.append(Instruction(int(found[1], 16), found[2]))
    return tuple(code), labels
