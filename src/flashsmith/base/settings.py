"""Every environment variable flashsmith reads, typed, in one place, read when used."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from pathlib import Path

from flashsmith.base.errors import ArgumentError
from flashsmith.base.plain_text import shortened
from flashsmith.base.whole_number import whole_number

KERNELS = "KERNELS"
CACHE_DIR = "FLASHSMITH_CACHE_DIR"
CACHE_LIMIT_MB = "FLASHSMITH_CACHE_LIMIT_MB"
NVRTC = "FLASHSMITH_NVRTC"
BUNDLE = "FLASHSMITH_BUNDLE"
DEVICE = "FLASHSMITH_DEVICE"
RESULTS = "FLASHSMITH_RESULTS"
COMMIT = "FLASHSMITH_COMMIT"
CHECK = "FLASHSMITH_CHECK"
SHAPES = "FLASHSMITH_SHAPES"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"

_log = logging.getLogger("flashsmith.settings")


def kernels_key() -> str:
    """The set of configurations that `KERNELS` names, or an empty text."""
    return os.environ.get(KERNELS, "")


def cache_dir() -> Path:
    """Where compiled kernels are kept: `FLASHSMITH_CACHE_DIR`, else the user's cache folder."""
    given = os.environ.get(CACHE_DIR)
    if given:
        return _expanded(CACHE_DIR, given)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "flashsmith"
    home = _home()
    return home / ".cache" / "flashsmith" if home else _without_home(CACHE_DIR) / "cache"


def cache_limit_bytes() -> int:
    """How large the kernel cache may grow: `FLASHSMITH_CACHE_LIMIT_MB`, else 2 GB."""
    text = os.environ.get(CACHE_LIMIT_MB, "2048")
    megabytes = whole_number(text)
    if not megabytes:
        raise ArgumentError(
            f"{CACHE_LIMIT_MB} is {shortened(text)!r}; it must be a number of megabytes above 0."
        )
    return megabytes << 20


def bundle_path() -> Path | None:
    """The bundle that `FLASHSMITH_BUNDLE` names, if any: kernels come from it, not a compiler."""
    given = os.environ.get(BUNDLE)
    return Path(given) if given else None


def nvrtc_path() -> Path | None:
    """The NVRTC library that `FLASHSMITH_NVRTC` names, if any."""
    given = os.environ.get(NVRTC)
    return Path(given) if given else None


def device_name() -> str | None:
    """The device that `FLASHSMITH_DEVICE` names (`cuda` or `emulator`), or None to look for one."""
    given = os.environ.get(DEVICE)
    if given not in (None, "", "cuda", "emulator"):
        raise ArgumentError(f"{DEVICE} is {given!r}; it must be 'cuda' or 'emulator'.")
    return given or None


_answers: dict[str, bool] = {}  # asked by every call: a look into the environment would be 2 %


def checks_calls() -> bool:
    """Whether `FLASHSMITH_CHECK` asks, at the first call, to look into q and k before each."""
    # A dict, not functools.cache: torch.compile warns of that.
    found = _answers.get(CHECK)
    if found is None:
        given = os.environ.get(CHECK, "")
        if given not in ("", "0", "1"):
            raise ArgumentError(f"{CHECK} is {shortened(given)!r}; it must be 0 or 1.")
        found = _answers[CHECK] = given == "1"
    return found


def shapes_path() -> Path | None:
    """The file that `FLASHSMITH_SHAPES` names, if any: each new problem is written there."""
    given = os.environ.get(SHAPES)
    return _expanded(SHAPES, given) if given else None


def results_path() -> Path:
    """Where measurements are kept: `FLASHSMITH_RESULTS`, else a file in the user's data folder."""
    given = os.environ.get(RESULTS)
    if given:
        return _expanded(RESULTS, given)
    base, home = os.environ.get("XDG_DATA_HOME"), _home()
    if base:
        return Path(base) / "flashsmith" / "results.sqlite"
    if home:
        return home / ".local" / "share" / "flashsmith" / "results.sqlite"
    return _without_home(RESULTS) / "results.sqlite"


def _expanded(name: str, given: str) -> Path:
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        user = given.partition("/")[0]
        raise ArgumentError(
            f"{name} is {shortened(given)!r}; {user} is not the home of any user here; write the "
            f"whole path."
        ) from error


def _home() -> Path | None:
    """The user's folder; None without HOME and without an entry of the user (some containers)."""
    try:
        return Path.home()
    except RuntimeError:
        return None


@functools.cache  # said once
def _without_home(name: str) -> Path:
    """Where files go that have no home: a folder of this user's among temporary ones."""
    folder = Path(tempfile.gettempdir()) / f"flashsmith-{os.getuid()}"
    if folder.exists() and folder.stat().st_uid != os.getuid():
        raise ArgumentError(
            f"there is no home folder (HOME is not set), and {folder} belongs to someone else; "
            f"set {name}."
        )
    folder.mkdir(mode=0o700, exist_ok=True)
    _log.warning(
        "there is no home folder (HOME is not set): files are kept in %s, which may not last; set "
        "%s to a folder that does",
        *(folder, name),
    )
    return folder


def commit() -> str:
    """The commit that records name where the package is no checkout, or an empty text."""
    return os.environ.get(COMMIT, "").strip()


def only_gpu(ordinal: int) -> dict[str, str]:
    """The change of environment under which a child sees one of this process's GPUs alone."""
    visible = os.environ.get(VISIBLE_GPUS, "")
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return {VISIBLE_GPUS: names[ordinal] if names else str(ordinal)}


def child_environment(changes: dict[str, str]) -> dict[str, str]:
    """This process's environment with `changes`, for a child process."""
    return {**os.environ, **changes}
