"""Which instructions a kernel consists of: opcodes of PTX and SASS listings, counted."""

from __future__ import annotations

import re
from collections import Counter

# An instruction of PTX: perhaps guarded, perhaps behind the brace of an asm block, never a
# directive (those begin with a dot) and never a label.
_PTX = re.compile(r"^[\s{]*(?:@!?%\w+\s+)?([a-z][a-z0-9_]*(?:\.[\w:]+)*)(?=[\s;])", re.MULTILINE)
# "        /*02d0*/              @!P5 IMAD.IADD R5, R5, 0x1, -R8 ;"
_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


def ptx_mix(ptx: str, *, whole: bool = False) -> Counter[str]:
    """How often each opcode stands in the text; without `whole` its modifiers are cut off."""
    body = re.sub(r"//[^\n]*|/\*.*?\*/", "", ptx[ptx.find(".entry") :], flags=re.DOTALL)
    return _count(_PTX.findall(body[body.find("{") + 1 :]), whole)


def sass_mix(sass: str, *, whole: bool = False) -> Counter[str]:
    """The same of a disassembly by nvdisasm."""
    return _count(_SASS.findall(sass), whole)


def _count(opcodes: list[str], whole: bool) -> Counter[str]:
    return Counter(opcode if whole else opcode.partition(".")[0] for opcode in opcodes)
