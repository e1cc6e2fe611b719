"""A bundle: the same kernels with no compiler, refusals by name, and no trust in its bytes."""

import errno
import hashlib
import json
import os
import zipfile
from dataclasses import asdict

import pytest

from flashsmith import arch as arches
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import CompilerMissing, DamagedFile, StorageError, Unsupported
from flashsmith.check.cases import Case
from flashsmith.check.verdict import check_case
from flashsmith.compile.ahead_of_time import bundle as bundle_module
from flashsmith.compile.ahead_of_time.build import build_bundle
from flashsmith.compile.ahead_of_time.bundle import open_bundle, read_bundle, write_bundle
from flashsmith.compile.artefact import Resources
from flashsmith.compile.cache.kernel_cache import KernelCache
from flashsmith.compile.compiler import compile_kernel
from flashsmith.compile.nvrtc import program as nvrtc
from flashsmith.compile.unit import UnitOptions
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.rules import Refusal
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.runtime.devices import open_device

SM_86 = arches.get("sm_86")
PLAIN = Needs()
COUNTS = {**asdict(Resources(168, 0, 0, 0, 0, 1)), "warnings": []}


@pytest.fixture(scope="module")
def built(tmp_path_factory, small, large):
    """A bundle of one configuration that fits and one that does not."""
    folder = tmp_path_factory.mktemp("bundle")
    cache = KernelCache(folder / "cache", 1 << 30)
    return build_bundle([small, large], [SM_86], folder / "kernels.bundle", cache=cache), cache


def test_a_bundle_gives_the_kernels_that_compiling_gives(built, small, monkeypatch):
    made, cache = built
    assert (made.n_configs, made.n_kernels) == (1, 4)
    assert made.n_bytes == made.path.stat().st_size
    compiled = compile_kernel(small, Needs(("causal",)), "sm_86", cache=cache)
    monkeypatch.setattr(nvrtc, "_load", lambda path: pytest.fail("no compiler is needed"))
    monkeypatch.setenv("FLASHSMITH_NVRTC", "/nowhere")
    bundle = read_bundle(made.path)
    kernel = bundle.kernel(small, Needs(("causal",)), "sm_86")
    assert (kernel.name, kernel.cubin, kernel.ptx) == (compiled.name, compiled.cubin, compiled.ptx)
    assert kernel.resources == compiled.resources
    assert (bundle.configs(), len(bundle)) == ([small], 4)


def test_a_bundle_that_is_set_takes_the_compilers_place(built, small, monkeypatch):
    monkeypatch.setenv("FLASHSMITH_BUNDLE", str(built[0].path))
    monkeypatch.setenv("FLASHSMITH_NVRTC", "/nowhere")
    kernel = compile_kernel(small, Needs(("ragged_q",)), "sm_86")
    assert kernel.name.endswith("__causal_ragged_q_ragged_k_narrow_d")
    with pytest.raises(Unsupported, match="not registered"):
        compile_kernel(small.replace(swizzled=False), PLAIN, "sm_86")
    with pytest.raises(CompilerMissing, match="FLASHSMITH_NVRTC"):
        compile_kernel(small, PLAIN, "sm_86", options=UnitOptions(line_info=True))


def test_a_bundle_that_was_replaced_is_read_again(built, tmp_path, monkeypatch):
    path = tmp_path / "k.bundle"
    path.write_bytes(built[0].path.read_bytes())
    first = open_bundle(path)
    assert open_bundle(path) is first
    path.write_bytes(b"no bundle any more")
    os.utime(path, ns=(1, 1))
    with pytest.raises(DamagedFile, match="is not a complete bundle"):
        open_bundle(path)


@pytest.mark.parametrize(
    ("needed", "given"),
    [
        (PLAIN, "plain"),
        (Needs(("causal",)), "causal"),
        (Needs(("ragged_k",)), "causal_ragged_q_ragged_k_narrow_d"),
        (Needs(("lse",)), "causal_lse_ragged_q_ragged_k_narrow_d"),
    ],
)
def test_the_kernel_with_the_fewest_needs_that_covers_a_problem_is_taken(
    built, small, needed, given
):
    kernel = read_bundle(built[0].path).kernel(small, needed, "sm_86")
    assert kernel.name == small.kernel_name(needed).rpartition("__")[0] + f"__{given}"


def test_equal_kernels_give_an_equal_file(built, small, large, tmp_path):
    made, cache = built
    again = build_bundle([small, large], [SM_86], tmp_path / "again.bundle", cache=cache)
    assert again.path.read_bytes() == made.path.read_bytes()


def test_a_configuration_outside_is_refused_with_the_number_and_the_nearest(built, small):
    wanted = small.replace(optimized_softmax=False)
    with pytest.raises(Unsupported) as caught:
        read_bundle(built[0].path).kernel(wanted, PLAIN, "sm_86")
    message = str(caught.value)
    assert message.startswith(f"{wanted.short_form()}: not registered")
    assert "holds 1 configurations" in message
    assert f"the nearest is {small.short_form()}" in message


def test_an_architecture_outside_is_refused_with_those_inside(built, small):
    with pytest.raises(Unsupported, match=r"no kernels for sm_80; it holds sm_86"):
        read_bundle(built[0].path).kernel(small, PLAIN, "sm_80")


def test_a_kernel_that_the_family_refuses_is_left_out_and_said(cache, small, tmp_path, monkeypatch):
    answers = iter([None, Refusal("spills", "ptxas spills 8 bytes", "lower B_c"), None, None])
    monkeypatch.setattr(type(small), "refused_build", lambda self, spills, warnings: next(answers))
    made = build_bundle([small], [SM_86], tmp_path / "k.bundle", workers=1, cache=cache)
    assert made.n_kernels == 3
    (reason,) = made.left_out
    assert reason.startswith(f"sm_86 causal: {small.short_form()}: ptxas spills 8 bytes")
    assert read_bundle(made.path).kernel(small, Needs(("causal",)), "sm_86").cubin


def test_a_set_of_which_nothing_fits_makes_no_bundle(cache, large, tmp_path):
    with pytest.raises(Unsupported, match=r"no configuration fits: .*shared memory"):
        build_bundle([large], [SM_86], tmp_path / "none.bundle", cache=cache)


@pytest.mark.parametrize("damage", ["cut", "foreign", "empty", "gone", "folder"])
def test_a_file_that_is_no_bundle_is_refused(built, tmp_path, damage):
    path = tmp_path / "some.bundle"
    whole = built[0].path.read_bytes()
    contents = {"cut": whole[: len(whole) // 2], "foreign": b"PK not a zip at all", "empty": b""}
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes(contents[damage])
    with pytest.raises(DamagedFile, match=r"some\.bundle is no"):
        read_bundle(path)


def rewrite(source, target, change, *, keeps_hash=False):
    """A copy of a bundle, each file passed through `change(name, data)`, its hash made to fit."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        new.comment = old.comment
        for name in old.namelist():
            data = change(name, old.read(name))
            new.writestr(name, data)
            if name == "manifest.json" and not keeps_hash:
                text = data.encode() if isinstance(data, str) else data
                new.comment = hashlib.sha256(text).hexdigest().encode()


def test_every_fact_of_a_bundle_is_covered_by_its_hash(built, tmp_path):
    path = tmp_path / "facts.bundle"

    def edit(name, data):
        return data.replace(b'"registers": ', b'"registers": 1') if "manifest" in name else data

    rewrite(built[0].path, path, edit, keeps_hash=True)
    with pytest.raises(
        DamagedFile, match=r"the hash of manifest\.json is not the one that the archive"
    ):
        read_bundle(path)


def test_a_bundle_that_cannot_be_written_leaves_nothing_and_keeps_the_old_one(
    built, small, tmp_path, monkeypatch
):
    path = tmp_path / "old.bundle"
    path.write_bytes(b"old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bundle_module, "_write", full)
    with pytest.raises(StorageError, match=r"old\.bundle: the disk is full; make room"):
        write_bundle(
            [(small, PLAIN, read_bundle(built[0].path).kernel(small, PLAIN, "sm_86"))], path
        )
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["old.bundle"]


def test_a_kernel_whose_bytes_were_changed_is_refused(built, small, tmp_path):
    path = tmp_path / "changed.bundle"
    rewrite(
        built[0].path,
        path,
        lambda name, data: data[:-1] + b"!" if name.endswith("plain.cubin") else data,
    )
    bundle = read_bundle(path)
    with pytest.raises(DamagedFile, match=r"the hash of .*plain\.cubin is not the one"):
        bundle.kernel(small, PLAIN, "sm_86")
    assert bundle.kernel(small, Needs(("causal",)), "sm_86").cubin


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 99},
        {"format": "another"},
        {"kernels": [{"config": "(BF16, 1)"}]},
        {"kernels": 5},
        {"kernels": [{"config": 5, "needs": ["no_such_need"]}]},
    ],
    ids=str,
)
def test_a_manifest_of_another_kind_is_refused(built, tmp_path, change):
    path = tmp_path / "manifest.bundle"

    def edit(name, data):
        return json.dumps({**json.loads(data), **change}) if name == "manifest.json" else data

    rewrite(built[0].path, path, edit)
    with pytest.raises(DamagedFile, match=r"manifest\.bundle is not a complete bundle"):
        read_bundle(path)


@pytest.mark.parametrize(
    "change",
    [
        {"arch": None},
        {"source_hash": 5},
        {"needs": ["causal", None]},
        {"compiler": ["nvrtc"]},
        {"cubin": None},
        {"resources": {}},
        {"resources": {**COUNTS, "registers": "168"}},
        {"resources": {**COUNTS, "registers": -1}},
        {"resources": {**COUNTS, "barriers": True}},
        {"resources": {**COUNTS, "warnings": "none"}},
        {"resources": {**COUNTS, "more": 1}},
    ],
    ids=str,
)
def test_a_kernel_of_the_manifest_with_a_field_of_another_type_is_refused(built, tmp_path, change):
    path = tmp_path / "types.bundle"

    def edit(name, data):
        if name != "manifest.json":
            return data
        manifest = json.loads(data)
        manifest["kernels"][0] |= change
        return json.dumps(manifest)

    rewrite(built[0].path, path, edit)
    with pytest.raises(DamagedFile, match=r"types\.bundle is not a complete bundle"):
        read_bundle(path)


def test_an_archive_whose_manifest_is_no_json_object_is_refused(tmp_path):
    for content in ("[1, 2]", "{", "null", '"text"', "[" * 100_000):
        path = tmp_path / "odd.bundle"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("manifest.json", content)
        with pytest.raises(DamagedFile, match=r"odd\.bundle is not a complete bundle"):
            read_bundle(path)


def test_an_entry_that_is_said_to_reach_behind_the_end_is_refused(tmp_path):
    path = tmp_path / "short.bundle"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", "{}")
    data = bytearray(path.read_bytes())
    directory = data.index(b"PK\x01\x02")
    data[directory + 20 : directory + 28] = (1000).to_bytes(4, "little") * 2  # both of its sizes
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match=r"short\.bundle is not a complete bundle"):
        read_bundle(path)


def test_an_entry_that_is_said_to_be_encrypted_is_refused(tmp_path):
    path = tmp_path / "some.bundle"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", "{}")
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"PK\x01\x02") + 8] |= 1  # the flags of its entry in the list at the end
    path.write_bytes(whole)
    with pytest.raises(DamagedFile, match="password required"):
        read_bundle(path)


def test_a_bundle_for_gpus_alone_is_smaller_and_has_no_ptx(built, small, tmp_path):
    cache = built[1]
    kernel = compile_kernel(small, PLAIN, "sm_86", cache=cache)
    sizes = {
        with_ptx: write_bundle([(small, PLAIN, kernel)], tmp_path / "b", with_ptx=with_ptx)
        for with_ptx in (True, False)
    }
    read = read_bundle(tmp_path / "b").kernel(small, PLAIN, "sm_86")
    assert (read.cubin, read.ptx) == (kernel.cubin, "")
    assert sizes[False] < 0.6 * sizes[True]


def test_a_bundle_holds_every_kernel_of_a_plan(cache, tmp_path, monkeypatch):
    config = parse_config("bwd(FP16, 64): dkv_64_32_4+dq_64_32_4")
    path = tmp_path / "backward.fsb"
    build_bundle([config], [arches.get("sm_90a")], path, cache=cache)
    monkeypatch.setenv("FLASHSMITH_BUNDLE", str(path))
    monkeypatch.setenv("FLASHSMITH_NVRTC", "/nowhere")
    problem = AttentionProblem(1, 3, 1, 33, 70, 64, DType.FP16, operation="backward")
    verdict = check_case(open_device("emulator"), config, Case("bundled", problem))
    assert verdict.ok, verdict
