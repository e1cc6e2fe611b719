"""The driver: results are checked and named, structures are laid out as the driver reads them."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from flashsmith.base.errors import LaunchError
from flashsmith.kernels.arguments import TensorMapSpec
from flashsmith.kernels.launch import LaunchGeometry
from flashsmith.runtime.cuda.driver import _PROTOTYPES, Driver
from flashsmith.runtime.cuda.launcher import make_launcher
from flashsmith.runtime.cuda.tensor_map import encode_tensor_map

SOURCE = Path(__file__).with_name("recording_driver.c")
PARAMS = (bytes(range(16)), b"\x01\x02\x03\x04")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    built = folder / "libdriver.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, SOURCE], check=True)
    return ctypes.CDLL(str(built))


@pytest.fixture
def driver(library):
    ctypes.c_int.in_dll(library, "fail").value = 0
    ctypes.c_uint64.in_dll(library, "current").value = 7
    return Driver(library)


def seen(library):
    return list((ctypes.c_uint64 * 64).in_dll(library, "seen"))


@pytest.mark.parametrize("stream", [0, 0x57])
def test_a_plain_launch_passes_geometry_stream_and_parameters(driver, library, stream):
    launch = make_launcher(driver, 7, 0xF00D, LaunchGeometry((65537, 2, 3), 128, 49152))
    launch(PARAMS)(stream)
    words = seen(library)
    assert words[:10] == [0xF00D, 65537, 2, 3, 128, 1, 1, 49152, stream, 1]
    assert words[10] == int.from_bytes(PARAMS[0][:8], "little")
    assert words[12] & 0xFFFFFFFF == 0x04030201


def test_a_cluster_launch_passes_its_shape_as_an_attribute(driver, library):
    launch = make_launcher(driver, 7, 0xF00D, LaunchGeometry((10, 1, 1), 384, 228000, cluster=2))
    launch(PARAMS)(0x58)
    words = seen(library)
    assert words[:10] == [0xF00D, 10, 1, 1, 384, 1, 1, 228000, 0x58, 1]
    assert words[13:17] == [4, 2, 1, 1]
    assert words[10] == int.from_bytes(PARAMS[0][:8], "little")


def test_a_launch_that_may_begin_early_says_so_in_an_attribute(driver, library):
    geometry = LaunchGeometry((10, 1, 1), 384, 228000, is_early=True)
    make_launcher(driver, 7, 0xF00D, geometry)(PARAMS)(0x58)
    words = seen(library)
    assert words[:10] == [0xF00D, 10, 1, 1, 384, 1, 1, 228000, 0x58, 1]
    assert words[13:15] == [6, 1]
    both = LaunchGeometry((10, 1, 1), 384, 0, cluster=2, is_early=True)
    make_launcher(driver, 7, 0xF00D, both)(PARAMS)(0x58)
    assert (seen(library)[9], seen(library)[13]) == (2, 4)


def test_a_launch_in_another_context_pushes_its_own_and_restores(driver, library):
    pops = seen(library)[61]
    make_launcher(driver, 8, 0xF00D, LaunchGeometry((1, 1, 1), 32, 0))(PARAMS)(0)
    assert seen(library)[60] == 8
    assert seen(library)[61] == pops + 1


def test_a_failed_launch_names_call_and_result(driver, library):
    launch = make_launcher(driver, 7, 1, LaunchGeometry((1, 1, 1), 32, 0))
    ctypes.c_int.in_dll(library, "fail").value = 209
    with pytest.raises(
        LaunchError, match=r"cuLaunchKernel returned CUDA_ERROR_NO_BINARY_FOR_GPU; .*architecture"
    ):
        launch(PARAMS)(0)


def test_a_driver_older_than_the_compiler_names_the_extra(driver, library):
    ctypes.c_int.in_dll(library, "fail").value = 200
    with pytest.raises(LaunchError, match=r"install flashsmith\[cu12\] or a newer driver"):
        driver.pointer("cuModuleLoadData", b"\x7fELF")


def test_a_result_without_a_name_shows_its_number(driver, library):
    ctypes.c_int.in_dll(library, "fail").value = 12345
    with pytest.raises(LaunchError, match="error 12345"):
        driver.pointer("cuModuleLoadData", b"\x7fELF")


def test_a_function_the_driver_lacks_is_named(driver):
    with pytest.raises(LaunchError, match=r"cuMemAlloc_v2 returned no such function; .*too old"):
        driver.pointer("cuMemAlloc_v2", 16)


def test_the_version_is_read_as_major_and_minor(driver):
    assert driver.version == (12, 8)


def test_a_tensor_map_is_encoded_with_its_fields_in_the_drivers_order(driver, library):
    spec = TensorMapSpec(0x1000, 2, (128, 77, 6), (256, 19712), (64, 32, 1), 128, is_bf16=False)
    assert encode_tensor_map(driver, spec) == b"\x5a" * 128
    words = seen(library)
    assert words[:8] == [0, 6, 3, 0x1000, 0, 3, 3, 0]
    assert words[10:13] == [128, 77, 6]
    assert words[15:17] == [256, 19712]
    assert words[20:23] == [64, 32, 1]
    assert words[25:28] == [1, 1, 1]


def test_every_prototype_counts_the_arguments_of_the_drivers_header():
    arguments = {"cuLaunchKernel": 11, "cuLaunchKernelEx": 4, "cuTensorMapEncodeTiled": 12}
    arguments |= {"cuMemsetD2D32Async": 6, "cuEventElapsedTime": 3, "cuDeviceGetAttribute": 3}
    assert {name: len(_PROTOTYPES[name]) for name in arguments} == arguments
