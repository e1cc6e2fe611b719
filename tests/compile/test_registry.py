"""The static registry: C++ that states every configuration, and a C program that uses it."""

import subprocess
from pathlib import Path

import pytest

from flashsmith import arch as arches
from flashsmith.base.errors import ArgumentError, CompilerMissing, Unsupported
from flashsmith.compile.ahead_of_time import nvcc
from flashsmith.compile.ahead_of_time.library import build_library
from flashsmith.compile.ahead_of_time.registry import (
    GENERAL,
    REGISTERED_NEEDS,
    flash_kernels_header,
    registry_configs,
    registry_unit,
    write_registry,
)
from flashsmith.compile.header_closure import header_closure
from flashsmith.kernels import resolve_key
from flashsmith.problem.needs import Needs

CLIENT = Path(__file__).parent / "c" / "registry_client.c"


def has_nvcc():
    try:
        nvcc.find_nvcc()
    except CompilerMissing:
        return False
    return True


needs_nvcc = pytest.mark.skipif(not has_nvcc(), reason="nvcc is not installed")


def test_the_map_holds_each_configuration_once_under_its_short_form():
    configs = registry_configs(resolve_key("all"))
    text = flash_kernels_header(configs)
    assert len(configs) == 85
    assert "inline const std::map<flashsmith::FlashForwardKernelConfig, forward_kernel_fn>" in text
    for config in configs:
        assert text.count(f"    // {config.short_form()}\n") == 1
        assert text.count(f"     &{config.identifier()}}},\n") == 1


def test_a_unit_has_a_kernel_for_each_of_the_registered_needs(small):
    text = registry_unit(small)
    for needs in REGISTERED_NEEDS:
        assert f"    {small.kernel_name(needs)}(" in text


def test_the_last_registered_needs_cover_every_problem():
    for bits in range(32):
        needed = Needs(tuple(name for i, name in enumerate(GENERAL) if bits >> i & 1))
        assert REGISTERED_NEEDS[-1].covers(needed)
        assert REGISTERED_NEEDS[0].covers(needed) == (bits == 0)


def test_the_folder_holds_every_header_that_its_units_include(tmp_path, small):
    written = write_registry([small, small], tmp_path)
    assert list(written.units) == [small]
    for name in header_closure(written.units[small].read_text()):
        assert (tmp_path / "include" / name).is_file()
    present = {path.name for path in tmp_path.iterdir()}
    assert {"flash_kernels.cuh", "flashsmith.h", "flashsmith.cu"} <= present


def test_what_cannot_be_registered_is_refused(small, monkeypatch):
    with pytest.raises(ArgumentError, match="no configuration is given"):
        registry_configs([])
    with pytest.raises(Unsupported, match="eager prefetch"):
        registry_configs([small.replace(async_copy=False)])
    monkeypatch.setattr(type(small), "HOST_HEADER", "")
    with pytest.raises(Unsupported, match="put it into a bundle"):
        registry_configs([small])


def test_a_machine_without_nvcc_says_what_to_install(monkeypatch, tmp_path, small):
    monkeypatch.setattr(nvcc.shutil, "which", lambda name: None)
    monkeypatch.setattr(nvcc.sys, "path", [])
    monkeypatch.setattr(nvcc, "TOOLKIT", tmp_path / "none")
    with pytest.raises(CompilerMissing, match="install nvidia-cuda-nvcc"):
        build_library([small], [arches.get("sm_80")], tmp_path)


def test_nvcc_of_the_wheel_is_found_where_path_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(nvcc.shutil, "which", lambda name: None)
    monkeypatch.setattr(nvcc.sys, "path", [str(tmp_path)])
    place = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    place.parent.mkdir(parents=True)
    place.write_text("")
    assert nvcc.find_nvcc() == place


@needs_nvcc
def test_a_configuration_that_fits_no_architecture_is_not_built(tmp_path, large):
    with pytest.raises(Unsupported, match="131,072 bytes of shared memory"):
        build_library([large], [arches.get("sm_86")], tmp_path)


@pytest.fixture(scope="module")
def library(tmp_path_factory, small):
    """A library of one configuration, built once for the tests below."""
    return build_library([small], [arches.get("sm_80")], tmp_path_factory.mktemp("library"))


@needs_nvcc
def test_the_library_holds_machine_code_and_says_what_it_took(library):
    assert (library.n_configs, library.n_kernels) == (1, len(REGISTERED_NEEDS))
    assert library.n_bytes == library.path.stat().st_size > 100_000
    assert library.compiler.startswith("nvcc 1")
    assert library.seconds > 0


@needs_nvcc
def test_a_c_program_lists_finds_and_is_refused_with_no_gpu(library, small, tmp_path):
    program = tmp_path / "client"
    folder = library.path.parent
    strict = ("-std=c11", "-Wall", "-Wextra", "-Werror")
    link = (f"-L{folder}", "-lflashsmith", f"-Wl,-rpath,{folder}")
    command = ["cc", *strict, f"-I{folder}", CLIENT, *link, "-o", program]
    subprocess.run(command, check=True)
    wanted = [
        small.short_form().replace(" ", ""),
        small.replace(optimized_softmax=False).short_form(),
    ]
    done = subprocess.run([program, *wanted], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == f"config {small.short_form()}"
    assert lines[1] == f"find 0 {small.short_form()}"
    assert lines[2] == (
        f"find 1 {wanted[1]}: not registered; this library holds 1 configurations, the nearest is "
        f"{small.short_form()}; take that one or build it into the library."
    )
    says = dict(line.split(" ", 1) for line in lines[3:])
    assert says["heads"].startswith("2 an argument that no kernel can take | heads is 3 and")
    assert "d_head is 72; this kernel takes multiples of 8 up to 64" in says["d_head"]
    assert "k_len 0" in says["k_len"]
    assert "scale is not a finite number" in says["scale"]
    assert "q.data is NULL" in says["null"]
    assert "v: its rows do not all begin at multiples of 16 bytes" in says["stride"]
    assert says["empty"].startswith("0 ok")
    assert says["none"].startswith("2 ")
