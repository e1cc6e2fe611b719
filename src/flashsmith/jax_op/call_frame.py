"""A call that XLA makes: its buffers, text, stream and scratch memory, read through ctypes.

XLA describes a call of its foreign function interface by C structs (xla/ffi/api/c_api.h, which
jaxlib carries). What is read here has had these places since version 0.1 of that interface; one of
another major version is refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar

from flashsmith.api.array_view import LINE_BYTES
from flashsmith.base.errors import LaunchError, Unsupported

MAJOR = 0
_METADATA = 1  # XLA_FFI_Extension_Metadata: XLA asks which version a handler is for
_EXECUTE = 3  # XLA_FFI_ExecutionStage_EXECUTE
_STRING = 4  # XLA_FFI_AttrType_STRING
INVALID_ARGUMENT, INTERNAL = 3, 13
# XLA_FFI_DataType, by the names of array libraries.
_DTYPES = {1: "bool", 4: "int32", 10: "float16", 11: "float32", 16: "bfloat16"}
_ALIGNMENT = 16  # the most that XLA lets a call ask for

Fields = Sequence[tuple[str, Any]]  # Any: a type of ctypes
Handler = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class _Begin(Structure):
    """What every struct begins with."""

    _fields_: ClassVar[Fields] = (("struct_size", c_size_t), ("extension", c_void_p))


class _Version(_Begin):
    _fields_ = (("major", c_int), ("minor", c_int))


class _Api(_Begin):
    _fields_ = (
        ("version", _Version),
        ("internal", c_void_p),
        ("error_create", c_void_p),
        ("error_get_message", c_void_p),
        ("error_destroy", c_void_p),
        ("handler_register", c_void_p),
        ("stream_get", c_void_p),
        ("type_register", c_void_p),
        ("execution_context_get", c_void_p),
        ("state_set", c_void_p),
        ("state_get", c_void_p),
        ("device_memory_allocate", c_void_p),
        ("device_memory_free", c_void_p),
    )


class _Buffer(_Begin):
    _fields_ = (
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    )


class _Buffers(_Begin):
    """XLA_FFI_Args and XLA_FFI_Rets."""

    _fields_ = (("size", c_int64), ("types", c_void_p), ("values", POINTER(POINTER(_Buffer))))


class _Span(Structure):
    _fields_ = (("data", c_void_p), ("size", c_size_t))

    def text(self) -> str:
        return ctypes.string_at(self.data, self.size).decode()


class _Attributes(_Begin):
    _fields_ = (
        ("size", c_int64),
        ("types", POINTER(c_int)),
        ("names", POINTER(POINTER(_Span))),
        ("values", POINTER(POINTER(_Span))),
    )


class _CallFrame(_Begin):
    _fields_ = (
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    )


class _MetadataExtension(Structure):
    """XLA_FFI_Extension_Base, whose second field is a number, and what it brings."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("kind", c_int),
        ("next", c_void_p),
        ("metadata", c_void_p),
    )


class _Metadata(Structure):
    _fields_ = (("struct_size", c_size_t), ("version", _Version), ("traits", ctypes.c_uint32))


class _ErrorArgs(_Begin):
    _fields_ = (("message", c_char_p), ("code", c_int))


class _MessageArgs(_Begin):
    _fields_ = (("error", c_void_p), ("message", c_char_p))


class _StreamArgs(_Begin):
    _fields_ = (("context", c_void_p), ("stream", c_void_p))


class _AllocateArgs(_Begin):
    _fields_ = (
        ("context", c_void_p),
        ("size", c_size_t),
        ("alignment", c_size_t),
        ("data", c_void_p),
    )


class _FreeArgs(_Begin):
    _fields_ = (("context", c_void_p), ("size", c_size_t), ("data", c_void_p))


@dataclass(frozen=True, slots=True)
class Buffer:
    """An argument or a result: contiguous memory."""

    shape: tuple[int, ...]
    dtype: str
    address: int


class CallFrame:
    """One call of a handler; what it allocates is freed when the call is over."""

    def __init__(self, address: int) -> None:
        self._frame = _CallFrame.from_address(address)
        self._api = self._frame.api.contents
        self._scratch: list[tuple[int, int]] = []

    def answers_metadata(self) -> bool:
        """Whether XLA asked for the handler's version only, which is then the one XLA has."""
        if not self._frame.extension:
            return False
        extension = _MetadataExtension.from_address(self._frame.extension)
        if extension.kind != _METADATA:
            return False
        metadata = _Metadata.from_address(extension.metadata)
        metadata.version.major = self._api.version.major
        metadata.version.minor = self._api.version.minor
        metadata.traits = 0
        return True

    def require_known(self) -> None:
        """Raises for an interface whose structs may have other fields, and for other stages."""
        major = self._api.version.major
        if major != MAJOR:
            raise Unsupported(
                f"XLA's foreign function interface has major version {major}; flashsmith knows "
                f"{MAJOR}; use another version of jaxlib."
            )
        if self._frame.stage != _EXECUTE:
            raise Unsupported(f"XLA asks for stage {self._frame.stage} of a call; there is one.")

    def arguments(self) -> list[Buffer]:
        """The arrays that are read."""
        return _buffers(self._frame.arguments)

    def results(self) -> list[Buffer]:
        """The arrays that are written."""
        return _buffers(self._frame.results)

    def text(self, name: str) -> str:
        """The value of a text that the call was made with."""
        attributes = self._frame.attributes
        for index in range(attributes.size):
            is_text = attributes.types[index] == _STRING
            if is_text and attributes.names[index].contents.text() == name:
                return str(attributes.values[index].contents.text())
        raise Unsupported(f"the call has no text {name!r}; it was made by another version.")

    def stream(self) -> int:
        """The handle of the CUDA stream that the call belongs on."""
        args = _filled(_StreamArgs, context=self._frame.context)
        self._call(self._api.stream_get, args)
        return args.stream or 0

    def allocate(self, n_bytes: int) -> int:
        """The address of scratch memory on the call's GPU, whose lines are nobody else's."""
        size = -(-n_bytes // LINE_BYTES) * LINE_BYTES + LINE_BYTES - _ALIGNMENT
        args = _filled(_AllocateArgs, context=self._frame.context, size=size, alignment=_ALIGNMENT)
        self._call(self._api.device_memory_allocate, args)
        self._scratch.append((args.data, size))
        return -(-int(args.data) // LINE_BYTES) * LINE_BYTES

    def free(self) -> None:
        """Gives scratch memory back: what XLA does next in the stream comes behind its use."""
        while self._scratch:
            data, n_bytes = self._scratch.pop()
            args = _filled(_FreeArgs, context=self._frame.context, size=n_bytes, data=data)
            self._call(self._api.device_memory_free, args)

    def error(self, message: str, code: int) -> int:
        """An error of XLA's, which the caller of the handler takes over."""
        args = _filled(_ErrorArgs, message=message.encode(), code=code)
        return int(Handler(self._api.error_create)(ctypes.addressof(args)))

    def _call(self, function: int, args: Structure) -> None:
        error = Handler(function)(ctypes.addressof(args))
        if error:
            told = _filled(_MessageArgs, error=error)
            Handler(self._api.error_get_message)(ctypes.addressof(told))
            message = (told.message or b"an error").decode()
            gone = _filled(_MessageArgs, error=error)
            Handler(self._api.error_destroy)(ctypes.addressof(gone))
            raise LaunchError("XLA's foreign function interface", message)


def _filled(kind: type[Structure], **fields: object) -> Structure:
    return kind(struct_size=ctypes.sizeof(kind), extension=None, **fields)


def _buffers(of: _Buffers) -> list[Buffer]:
    found = []
    for index in range(of.size):
        buffer = of.values[index].contents
        dtype = _DTYPES.get(buffer.dtype, f"XLA's type {buffer.dtype}")
        found.append(Buffer(tuple(buffer.dims[: buffer.rank]), dtype, buffer.data or 0))
    return found


def handler_of(compute: Callable[[CallFrame], None]) -> object:
    """A function that XLA can call; what `compute` raises becomes an error of XLA's."""

    def handle(address: int) -> int | None:
        frame = CallFrame(address)
        try:
            if frame.answers_metadata():
                return None
            frame.require_known()
            try:
                compute(frame)
            finally:
                frame.free()
        except BaseException as error:  # noqa: BLE001  # nothing may pass through XLA's C++
            is_ours = isinstance(error, ValueError | TypeError)
            return frame.error(
                f"{type(error).__name__}: {error}", INVALID_ARGUMENT if is_ours else INTERNAL
            )
        return None

    return Handler(handle)
