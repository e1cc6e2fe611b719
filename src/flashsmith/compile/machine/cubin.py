"""A cubin is an ELF file: its machine code, by itself, tells equal kernels of unlike names."""

from __future__ import annotations

import hashlib
import struct

from flashsmith.base.errors import DamagedFile

_SECTION_TABLE = struct.Struct("<8xQ10xHHH")  # from byte 32: e_shoff, e_shentsize, e_shnum, names
_SECTION = struct.Struct("<II16xQQ")  # sh_name, sh_type, sh_offset, sh_size


def machine_code(cubin: bytes) -> bytes:
    """The contents of every `.text` section, in the order of the file."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise DamagedFile("this is not a cubin: it does not begin like a 64-bit ELF file.")
    try:
        return b"".join(data for name, data in _sections(cubin) if name.startswith(b".text"))
    except (struct.error, IndexError) as error:
        raise DamagedFile("this cubin is cut off: its section table is incomplete.") from error


def code_hash(cubin: bytes) -> str:
    """SHA-256 of the machine code: equal for kernels that run the same instructions."""
    return hashlib.sha256(machine_code(cubin)).hexdigest()


def _sections(cubin: bytes) -> list[tuple[bytes, bytes]]:
    table, entry_size, count, names_index = _SECTION_TABLE.unpack_from(cubin, 32)
    headers = [_SECTION.unpack_from(cubin, table + i * entry_size) for i in range(count)]
    names_offset = headers[names_index][2]
    return [
        (_text_at(cubin, names_offset + name), cubin[offset : offset + size])
        for name, _, offset, size in headers
    ]


def _text_at(cubin: bytes, offset: int) -> bytes:
    return cubin[offset : cubin.index(b"\0", offset)] if offset < len(cubin) else b""
