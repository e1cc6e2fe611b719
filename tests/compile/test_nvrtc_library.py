"""Which NVRTC is taken: the setting's first, then a wheel that fits the driver, and so on."""

import sys

import pytest

from flashsmith.base.errors import CompilerMissing
from flashsmith.compile.nvrtc import library as nvrtc_library
from flashsmith.compile.nvrtc.library import NvrtcLibrary, driver_misfit, find_nvrtc

DRIVER_535 = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n"
DRIVER_580 = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with nothing on it; `machine(path)` puts a library there."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(nvrtc_library, "TOOLKITS", (tmp_path / "toolkit",))
    monkeypatch.setattr(nvrtc_library, "DRIVER_VERSION_FILE", tmp_path / "driver")
    monkeypatch.delenv("FLASHSMITH_NVRTC", raising=False)
    nvrtc_library._find.cache_clear()

    def put(path, text="library"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        return tmp_path / path

    yield put
    nvrtc_library._find.cache_clear()


def put_wheels(machine):
    machine("site/nvidia/cu13/lib/libnvrtc.so.13")
    machine("site/nvidia_cuda_nvrtc-13.4.92.dist-info/METADATA")
    machine("site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    machine("site/nvidia_cuda_nvrtc_cu12-12.9.86.dist-info/METADATA")


def test_with_no_driver_the_newest_wheel_is_taken(machine):
    put_wheels(machine)
    found = find_nvrtc()
    assert (found.compiler, found.origin, found.cuda_major) == ("nvrtc 13.4.92", "wheel", 13)


@pytest.mark.parametrize(("driver", "version"), [(DRIVER_580, "13.4.92"), (DRIVER_535, "12.9.86")])
def test_a_driver_chooses_the_wheel_whose_cubins_it_loads(machine, driver, version):
    put_wheels(machine)
    machine("driver", driver)
    assert find_nvrtc().version == version


def test_the_setting_comes_before_every_wheel(machine, monkeypatch):
    put_wheels(machine)
    monkeypatch.setenv("FLASHSMITH_NVRTC", str(machine("own/libnvrtc.so.12.8.93")))
    assert (find_nvrtc().version, find_nvrtc().origin) == ("12.8.93", "setting")


def test_a_setting_that_names_no_file_is_refused(machine, monkeypatch):
    monkeypatch.setenv("FLASHSMITH_NVRTC", "/nowhere/libnvrtc.so")
    with pytest.raises(CompilerMissing, match=r"FLASHSMITH_NVRTC is '/nowhere/libnvrtc.so'"):
        find_nvrtc()


def test_torch_comes_before_a_toolkit(machine):
    machine("toolkit/lib64/libnvrtc.so.13.0.88")
    assert (find_nvrtc().version, find_nvrtc().origin) == ("13.0.88", "toolkit")
    nvrtc_library._find.cache_clear()
    machine("site/torch/lib/libnvrtc-b51b459d.so.12")
    machine("site/torch/lib/libnvrtc-builtins-f4c2.so.12.6")
    assert find_nvrtc().origin == "torch"


def test_of_a_toolkits_libraries_the_newest_is_taken_by_number(machine):
    for version in ("13.4.92", "13.10.1", "9.2.148"):
        machine(f"toolkit/lib64/libnvrtc.so.{version}")
    assert find_nvrtc().version == "13.10.1"


def test_a_library_without_a_version_is_told_apart_by_its_file(machine):
    first = nvrtc_library._version(machine("a/libnvrtc-1.so"))
    second = nvrtc_library._version(machine("b/libnvrtc-1.so", "another library"))
    assert first != second


def test_no_library_at_all_says_what_to_install(machine):
    with pytest.raises(CompilerMissing, match="install the package nvidia-cuda-nvrtc"):
        find_nvrtc()


def test_a_driver_too_old_for_the_cubins_says_which_extra_to_install(machine):
    library = NvrtcLibrary(machine("x/libnvrtc.so.13"), "13.4.92", "wheel")
    assert driver_misfit(library) == ""
    machine("driver", DRIVER_580)
    assert driver_misfit(library) == ""
    machine("driver", DRIVER_535)
    assert "install flashsmith[cu12] or a driver of branch 580" in driver_misfit(library)


@pytest.mark.parametrize(
    ("driver", "compiler", "loads"),
    [
        (None, "nvrtc 13.4.92", True),
        (13, "nvrtc 13.4.92", True),
        (13, "nvrtc 12.8.93", True),
        (12, "nvrtc 12.8.93", True),
        (12, "nvrtc 13.0.88", False),
    ],
)
def test_a_driver_loads_cubins_of_its_cuda_and_older(monkeypatch, driver, compiler, loads):
    monkeypatch.setattr(nvrtc_library, "driver_cuda_major", lambda: driver)
    assert nvrtc_library.loads_on_driver(compiler) is loads
