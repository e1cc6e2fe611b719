"""Every error flashsmith raises: fields first, and a message of what was given, allowed, to do."""

from __future__ import annotations

from pathlib import Path


class FlashsmithError(Exception):
    """Root of all errors that are not a bug in flashsmith."""


class ConfigError(FlashsmithError, ValueError):
    """A configuration, key or short form that does not exist."""


class ArgumentError(FlashsmithError, ValueError):
    """An argument of a call whose value cannot be used."""


class ArgumentTypeError(FlashsmithError, TypeError):
    """An argument of a call that is not the kind of thing that is needed."""


class Unsupported(FlashsmithError, ValueError):
    """Something real that this package, or this GPU, does not do."""


class OutOfResources(FlashsmithError, ValueError):
    """A kernel that needs more of a resource than a GPU gives to one block."""

    def __init__(self, subject: str, what: str, needed: int, limit: int, advice: str) -> None:
        super().__init__(subject, what, needed, limit, advice)
        self.subject = subject
        self.what = what
        self.needed = needed
        self.limit = limit
        self.advice = advice

    def __str__(self) -> str:
        return (
            f"{self.subject}: needs {self.needed:,} {self.what}, the limit is {self.limit:,}; "
            f"{self.advice}."
        )


class CompileError(FlashsmithError):
    """NVRTC refused a unit; the unit and its log are kept at `source_path`."""

    def __init__(self, subject: str, log: str, source_path: Path | None) -> None:
        super().__init__(subject, log, source_path)
        self.subject = subject
        self.log = log
        self.source_path = source_path

    def __str__(self) -> str:
        first = next((line for line in self.log.splitlines() if "error" in line), "no error line")
        kept = f" Unit and log are kept in {self.source_path}." if self.source_path else ""
        return f"{self.subject}: does not compile: {first.strip()}.{kept}"


class CompilerMissing(FlashsmithError):
    """No NVRTC that fits was found."""


class LaunchError(FlashsmithError):
    """A driver call that failed."""

    def __init__(self, call: str, result: str, advice: str = "") -> None:
        super().__init__(call, result, advice)
        self.call = call
        self.result = result
        self.advice = advice

    def __str__(self) -> str:
        tail = f"; {self.advice}" if self.advice else ""
        return f"{self.call} returned {self.result}{tail}."


class OutOfTime(LaunchError):
    """A program that was ended because it took longer than it may."""


class DeviceMissing(FlashsmithError):
    """A device that was asked for and is not there."""


class EmulationError(FlashsmithError):
    """A fault the emulator found while it ran a kernel, or PTX it cannot run."""

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        kernel: str = "",
        line: int = 0,
        block: tuple[int, int, int] | None = None,
        warp: int | None = None,
        lane: int | None = None,
        address: int | None = None,
        other: str = "",
    ) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message
        self.kernel = kernel
        self.line = line
        self.block = block
        self.warp = warp
        self.lane = lane
        self.address = address
        self.other = other

    def __reduce__(self) -> tuple[object, ...]:
        return (_emulation_error, (self.kind, self.message, self.__dict__))

    def __str__(self) -> str:
        where = [f"kernel {self.kernel}"] if self.kernel else []
        where += [f"PTX line {self.line}"] if self.line else []
        where += [f"block {self.block}"] if self.block is not None else []
        where += [f"warp {self.warp}"] if self.warp is not None else []
        where += [f"lane {self.lane}"] if self.lane is not None else []
        where += [f"address {self.address:#x}"] if self.address is not None else []
        location = f" [{', '.join(where)}]" if where else ""
        other = f" Other party: {self.other}." if self.other else ""
        return f"{self.kind}: {self.message}{location}.{other}"


def _emulation_error(kind: str, message: str, fields: dict[str, object]) -> EmulationError:
    error = EmulationError(kind, message)
    error.__dict__.update(fields)
    return error


class Mismatch(FlashsmithError):
    """An output that is further from the truth than allowed."""

    def __init__(self, subject: str, worst: float, allowed: float, where: str) -> None:
        super().__init__(subject, worst, allowed, where)
        self.subject = subject
        self.worst = worst
        self.allowed = allowed
        self.where = where

    def __str__(self) -> str:
        return (
            f"{self.subject}: off by {self.worst:.3e} at {self.where}, "
            f"{self.allowed:.3e} is allowed."
        )


class Interrupted(FlashsmithError):
    """Ctrl-C: the user ended a command."""


class FileInUse(FlashsmithError):
    """A file that another process has kept to itself for too long."""


class StorageError(FlashsmithError):
    """A file that the disk or its rights keep from being read or written."""


class DamagedFile(FlashsmithError, ValueError):
    """A cache entry, bundle or results file that is not what its name says."""
