"""A bundle: the kernels of a set in one file, loaded with no compiler.

A zip archive of `manifest.json` and, for each kernel, its cubin and, unless it is for GPUs alone,
its PTX (for the emulator). The manifest states every file's SHA-256, the archive's comment that of
the manifest: no byte that is used may differ. Nothing in it is run or unpickled on the host.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from flashsmith.base.errors import DamagedFile, FlashsmithError, Unsupported
from flashsmith.base.json_text import parse_json
from flashsmith.base.loose_types import JsonObject
from flashsmith.base.whole_file import written_whole
from flashsmith.compile.artefact import CompiledKernel, resources_from, text_from
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.parse import parse_config
from flashsmith.problem.needs import Needs

FORMAT = "flashsmith bundle"
SCHEMA = 3
MANIFEST = "manifest.json"
FIXED_TIME = (1980, 1, 1, 0, 0, 0)  # equal kernels give an equal file
MAX_FILE_BYTES = 64 << 20  # far above any kernel, far below what could hurt

Key = tuple[KernelConfig, Needs, str]


class _Listed(NamedTuple):
    """One kernel as the manifest lists it."""

    name: str
    facts: JsonObject  # checked when the kernel is read


class Bundle:
    """An open bundle; `kernel` has the signature of `compile_kernel` and takes its place."""

    def __init__(self, path: Path, listed: dict[Key, _Listed]) -> None:
        self.path = path
        self._listed = listed

    def __len__(self) -> int:
        """How many kernels it holds."""
        return len(self._listed)

    def configs(self) -> list[KernelConfig]:
        """The configurations it holds, each once, in the order they were written."""
        return list(dict.fromkeys(config for config, _, _ in self._listed))

    def source_hashes(self) -> dict[Key, str]:
        """Of what sources each kernel is."""
        return {key: str(listed.facts["source_hash"]) for key, listed in self._listed.items()}

    def arches(self) -> list[str]:
        """The architectures it holds kernels for."""
        return sorted({arch for _, _, arch in self._listed})

    def kernel(self, config: KernelConfig, needs: Needs, arch: str) -> CompiledKernel:
        """The kernel with the fewest needs that computes a problem of `needs`."""
        if (config, needs, arch) in self._listed:
            return self._read((config, needs, arch))
        self._require_registered(config, arch)
        covering = [
            (len(t), t) for c, t, a in self._listed if c == config and a == arch and t.covers(needs)
        ]
        if not covering:
            raise Unsupported(
                f"{config.short_form()}: {self.path} has no kernel of it for "
                f"{needs.identifier()}; build the bundle again."
            )
        return self._read((config, min(covering)[1], arch))

    def _require_registered(self, config: KernelConfig, arch: str) -> None:
        if arch not in self.arches():
            raise Unsupported(
                f"{self.path} holds no kernels for {arch}; it holds {', '.join(self.arches())}; "
                f"build it with --arch {arch}."
            )
        known = list(dict.fromkeys(c for c, _, a in self._listed if a == arch))
        if config not in known:
            raise Unsupported(
                f"{config.short_form()}: not registered; {self.path} holds {len(known)} "
                f"configurations for {arch}, the nearest is {nearest(config, known).short_form()}; "
                f"take that one or build it into the bundle."
            )

    def _read(self, key: Key) -> CompiledKernel:
        listed = self._listed[key]
        try:
            with zipfile.ZipFile(self.path) as archive:
                files = {
                    part: _checked(archive, f"{key[2]}/{listed.name}.{part}", listed.facts[part])
                    for part in ("cubin", "ptx")
                    if part in listed.facts
                }
            return CompiledKernel(
                name=listed.name,
                arch=key[2],
                ptx=files.get("ptx", b"").decode(),
                cubin=files["cubin"],
                resources=resources_from(listed.facts["resources"]),
                compiler=listed.facts["compiler"],
                source_hash=listed.facts["source_hash"],
                key=listed.facts["key"],
                compile_seconds=0.0,  # a time would make equal bundles differ
            )
        except _DAMAGE as error:
            raise _damaged(self.path, error) from error


def write_bundle(
    kernels: Iterable[tuple[KernelConfig, Needs, CompiledKernel]],
    path: Path,
    *,
    with_ptx: bool = True,
) -> int:
    """Writes a bundle beside its place and renames it; returns its bytes.

    Without PTX it is 0.4 times as large, and of no use to the emulator.
    """
    with written_whole(path) as beside, zipfile.ZipFile(beside, "w") as archive:
        _write_kernels(archive, kernels, with_ptx)
    return path.stat().st_size


def _write_kernels(
    archive: zipfile.ZipFile,
    kernels: Iterable[tuple[KernelConfig, Needs, CompiledKernel]],
    with_ptx: bool,
) -> None:
    listed = []
    for config, needs, kernel in kernels:
        stem = f"{kernel.arch}/{kernel.name}"
        _write(archive, f"{stem}.cubin", kernel.cubin)
        facts = _facts(config, needs, kernel)
        if with_ptx:
            _write(archive, f"{stem}.ptx", kernel.ptx.encode())
            facts["ptx"] = hashlib.sha256(kernel.ptx.encode()).hexdigest()
        listed.append(facts)
    manifest = {"format": FORMAT, "schema": SCHEMA, "kernels": listed}
    text = (json.dumps(manifest, indent=1) + "\n").encode()
    _write(archive, MANIFEST, text)
    archive.comment = hashlib.sha256(text).hexdigest().encode()


def read_bundle(path: Path) -> Bundle:
    """Opens a bundle and checks its manifest; a kernel is checked when it is asked for."""
    try:
        with zipfile.ZipFile(path) as archive:
            text = _bytes(archive, MANIFEST)
            if hashlib.sha256(text).hexdigest().encode() != archive.comment:
                raise DamagedFile(f"the hash of {MANIFEST} is not the one that the archive states")
        manifest = parse_json(text)
        if manifest["format"] != FORMAT or manifest["schema"] != SCHEMA:
            raise DamagedFile(f"its format is {manifest['format']!r} {manifest['schema']!r}")
        configs = {text: parse_config(text) for text in {f["config"] for f in manifest["kernels"]}}
        listed = {}
        for facts in manifest["kernels"]:
            _require_types(facts)
            key = configs[facts["config"]], Needs(tuple(facts["needs"])), facts["arch"]
            listed[key] = _Listed(facts["name"], facts)
        return Bundle(path, listed)
    except FileNotFoundError as error:
        raise DamagedFile(
            f"{path} is not a file; a bundle is made by `flashsmith build bundle`; check the path."
        ) from error
    except _DAMAGE as error:
        raise _damaged(path, error) from error


def _require_types(facts: JsonObject) -> None:
    for name in ("arch", "name", "source_hash", "compiler", "key", "cubin"):
        text_from(facts, name)
    if "ptx" in facts:
        text_from(facts, "ptx")
    resources_from(facts["resources"])
    if not isinstance(facts["needs"], list) or not all(
        isinstance(name, str) for name in facts["needs"]
    ):
        raise DamagedFile(f"needs are {facts['needs']!r}, not a list of texts")


def open_bundle(path: Path) -> Bundle:
    """As `read_bundle`, but a file that is still the same is read once a process."""
    try:
        stamp = path.stat().st_mtime_ns
    except OSError:
        stamp = 0
    known = _opened.get(path)
    if known is None or known[0] != stamp:
        known = _opened[path] = (stamp, read_bundle(path))
    return known[1]


_opened: dict[Path, tuple[int, Bundle]] = {}


def nearest(config: KernelConfig, known: Iterable[KernelConfig]) -> KernelConfig:
    """The one of `known` that differs from `config` in the fewest fields, the first of those."""
    wanted = (config.NAME, *asdict(config).values())

    def difference(other: KernelConfig) -> int:
        fields = (other.NAME, *asdict(other).values())
        return sum(a != b for a, b in zip(wanted, fields, strict=False))

    return min(known, key=difference)


_DAMAGE = (
    zipfile.BadZipFile,
    EOFError,  # an entry said to lie behind the end
    zlib.error,
    OSError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,  # of zipfile: a compression, a password or a feature that no bundle has
    FlashsmithError,
)


def _damaged(path: Path, error: Exception) -> DamagedFile:
    return DamagedFile(
        f"{path} is not a complete bundle ({error}); it is one file written by `flashsmith build "
        f"bundle`; build it again."
    )


def _write(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, FIXED_TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)


def _bytes(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > MAX_FILE_BYTES:
        raise DamagedFile(f"{name} is larger than any kernel")
    return archive.read(name)


def _checked(archive: zipfile.ZipFile, name: str, digest: str) -> bytes:
    data = _bytes(archive, name)
    if hashlib.sha256(data).hexdigest() != digest:
        raise DamagedFile(f"the hash of {name} is not the one that the manifest states")
    return data


def _facts(config: KernelConfig, needs: Needs, kernel: CompiledKernel) -> dict[str, object]:
    return {
        "config": config.short_form(),
        "needs": list(needs),
        "arch": kernel.arch,
        "name": kernel.name,
        "cubin": hashlib.sha256(kernel.cubin).hexdigest(),
        "resources": asdict(kernel.resources),
        "compiler": kernel.compiler,
        "source_hash": kernel.source_hash,
        "key": kernel.key,
    }
