"""NVRTC through ctypes: one unit in, PTX, cubin and log out; works with no driver."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flashsmith.base.errors import CompilerMissing, FlashsmithError
from flashsmith.base.forks import call_in_forked_child
from flashsmith.base.loose_types import CLibrary
from flashsmith.compile.nvrtc.library import NvrtcLibrary

SUCCESS = 0
COMPILATION_FAILED = 6  # nvrtcResult NVRTC_ERROR_COMPILATION
INVALID_OPTION = 5  # NVRTC_ERROR_INVALID_OPTION: the log says which

_compiling: set[int] = set()  # threads that are inside NVRTC
_is_stuck = False


class RefusedUnit(FlashsmithError):
    """NVRTC did not take a unit; the log says why."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log


@dataclass(frozen=True, slots=True)
class NvrtcOutput:
    """What one program gives."""

    ptx: str
    cubin: bytes  # empty where the architecture is a virtual one
    log: str


def compile_program(
    library: NvrtcLibrary, source: str, file_name: str, options: Sequence[str]
) -> NvrtcOutput:
    """Compiles one unit; safe to call from several threads at once."""
    nvrtc = _load(library.path)
    thread = threading.get_ident()
    _compiling.add(thread)
    try:
        return _compile(nvrtc, source, file_name, options)
    finally:
        _compiling.discard(thread)


def survived_fork() -> bool:
    """Whether this process may call NVRTC: a fork copied none of its locks while they were held."""
    return not _is_stuck


@call_in_forked_child
def _note_fork() -> None:
    global _is_stuck
    _is_stuck = _is_stuck or bool(_compiling)
    _compiling.clear()


def _compile(
    nvrtc: CLibrary,
    source: str,
    file_name: str,
    options: Sequence[str],
) -> NvrtcOutput:
    program = ctypes.c_void_p()
    _check(
        nvrtc,
        "nvrtcCreateProgram",
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), file_name.encode(), 0, None, None
        ),
    )
    try:
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        result = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
        log = _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if result in (COMPILATION_FAILED, INVALID_OPTION):
            raise RefusedUnit(log or f"error: {_result_name(nvrtc, result)}")
        _check(nvrtc, "nvrtcCompileProgram", result)
        ptx = _read(nvrtc, program, "PTX").rstrip(b"\0").decode()
        return NvrtcOutput(ptx, _read(nvrtc, program, "CUBIN"), log)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@functools.lru_cache(maxsize=8)
def _load(path: Path) -> CLibrary:
    try:
        # NVRTC opens its builtins by name alone, and not every wheel tells the loader where they
        # lie (13.0 does not); one that is loaded already is found by its name.
        for builtins in {file.resolve() for file in path.parent.glob("libnvrtc-builtins*.so*")}:
            if ".alt." not in builtins.name:
                ctypes.CDLL(str(builtins))
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompilerMissing(
            f"{path} does not load: {error}; it compiles the kernels; reinstall "
            f"nvidia-cuda-nvrtc or set FLASHSMITH_NVRTC to another one."
        ) from error


def _read(nvrtc: CLibrary, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    get_size = getattr(nvrtc, f"nvrtcGet{what}Size")
    _check(nvrtc, f"nvrtcGet{what}Size", get_size(program, ctypes.byref(size)))
    # A buffer of its own, never bytes: NVRTC writes into it, and CPython shares short bytes.
    buffer = ctypes.create_string_buffer(size.value + 1)
    _check(nvrtc, f"nvrtcGet{what}", getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw[: size.value]


def _check(nvrtc: CLibrary, call: str, result: int) -> None:
    if result != SUCCESS:
        raise FlashsmithError(
            f"{call} returned {_result_name(nvrtc, result)}; this is a fault inside NVRTC or of "
            f"its installation; reinstall nvidia-cuda-nvrtc."
        )


def _result_name(nvrtc: CLibrary, result: int) -> str:
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return str(nvrtc.nvrtcGetErrorString(result).decode())
