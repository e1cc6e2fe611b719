"""Named sets of configurations: what a KEY or the environment variable KERNELS selects."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, ConfigError
from flashsmith.base.plain_text import shortened
from flashsmith.base.whole_number import whole_number
from flashsmith.kernels.catalogue import CATALOGUE
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.parse import looks_like_config, parse_config, require_short
from flashsmith.kernels.sm80_forward.config import FlashForwardKernelConfig
from flashsmith.kernels.sm80_forward.sets import (
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
)

_BLOCKS = "B_r,B_c"


def named_sets() -> dict[str, Callable[[], Sequence[KernelConfig]]]:
    """Every set that has a name, of every family."""
    return {name: make for family in CATALOGUE for name, make in family.named_sets().items()}


def get_kernel_configs(kernels_key: str | None = "") -> list[KernelConfig]:
    """The set that the key, or else the environment variable KERNELS, names; None is not given.

    `prog…` is the ladder (with `all` in it: at all block sizes), `tune` the tuning set, `all` what
    is built ahead of time, `64,32` the part of the tuning set with B_r 64 and B_c 32.
    """
    if not isinstance(kernels_key, str | None):
        raise ArgumentTypeError(
            f"kernels_key is {kernels_key!r}; it must be a text such as 'tune'."
        )
    key = kernels_key or settings.kernels_key()
    require_short(key)
    sets = named_sets()
    if key in sets:
        return list(sets[key]())
    if key.startswith("prog"):
        return list(get_kernel_progression_configs(all_block_sizes="all" in key))
    if "," in key and not looks_like_config(key):
        return list(_with_blocks(key))
    raise _unknown(key, [*sets, _BLOCKS])


def resolve_key(key: str) -> list[KernelConfig]:
    """The configurations a command's KEY means: a set, one configuration, or `@file` of lines.

    Sets may be joined, as in `tune+hopper`; what is in several is taken once.
    """
    require_short(key)
    if key.startswith("@"):
        return _from_file(Path(key[1:]))
    if looks_like_config(key):
        return [parse_config(key)]
    parts = [get_kernel_configs(part.strip()) for part in key.split("+")]
    return list(dict.fromkeys(config for part in parts for config in part))


def _with_blocks(key: str) -> list[FlashForwardKernelConfig]:
    parts = [part.strip() for part in key.split(",")]
    tune = get_autotuning_kernel_configs()
    blocks = sorted({(config.B_r, config.B_c) for config in tune})
    listed = " ".join(f"{b_r},{b_c}" for b_r, b_c in blocks)
    wanted = tuple(map(whole_number, parts))
    if len(parts) != 2 or None in wanted:
        raise ConfigError(
            f"{shortened(key)!r} is not of the form {_BLOCKS!r}; the tuning set has {listed}; name "
            f"one of these."
        )
    if wanted not in blocks:
        raise ConfigError(
            f"unknown block size {key!r}; the tuning set has {listed}; name one of these."
        )
    return [config for config in tune if (config.B_r, config.B_c) == wanted]


def _unknown(key: str, valid: list[str]) -> ConfigError:
    listed = ", ".join(valid)
    if not key:
        return ConfigError(
            f"no key is given and KERNELS is not set; the sets are {listed}; give one."
        )
    near = difflib.get_close_matches(key, valid, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else "give one of these."
    return ConfigError(f"unknown set {shortened(key)!r}; the sets are {listed}; {hint}")


def _from_file(path: Path) -> list[KernelConfig]:
    if not path.is_file():
        raise ArgumentError(f"@{path} is not a file; give a file with one short form per line.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"@{path} cannot be read ({error}); it must be text with one short form per line."
        ) from error
    configs = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            configs.append(parse_config(text))
        except ConfigError as error:
            raise ConfigError(f"{path}:{number}: {error}") from error
    if not configs:
        raise ConfigError(f"{path} holds no configuration; write one short form per line.")
    return configs
