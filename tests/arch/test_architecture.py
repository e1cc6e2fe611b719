"""Architectures and GPUs as data: names, look-up, roofline."""

import pytest

from flashsmith import arch
from flashsmith.arch import gpus
from flashsmith.base.errors import Unsupported


def test_the_six_architectures_are_known_by_name_and_capability():
    names = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"]
    assert [a.name for a in arch.ARCHES] == names
    for known in arch.ARCHES:
        assert arch.get(known.name) is known
        assert arch.of_capability(*known.sm_version) is known


@pytest.mark.parametrize("spelling", ["sm_90", "90", "90a", "sm_90a"])
def test_an_architecture_may_be_named_without_its_suffix_or_prefix(spelling):
    assert arch.get(spelling).name == "sm_90a"


def test_an_unknown_architecture_lists_the_known_ones():
    with pytest.raises(Unsupported, match=r"unknown architecture 'sm_75'; choose one of sm_80, "):
        arch.get("sm_75")
    with pytest.raises(TypeError, match="arch is None; it must be a text such as 'sm_90a'"):
        arch.get(None)
    with pytest.raises(Unsupported, match=r"compute capability 7\.5 is not supported"):
        arch.of_capability(7, 5)


def test_an_unknown_minor_runs_the_architecture_below():
    assert arch.of_capability(12, 1).name == "sm_120"
    assert arch.of_capability(8, 7).name == "sm_86"


def test_every_block_limit_leaves_the_reserved_bytes_of_the_sm():
    for known in arch.ARCHES:
        assert known.max_smem_per_block + known.reserved_smem_per_block == known.smem_per_sm


def test_every_named_gpu_is_found_by_its_drivers_name():
    names = ["A100", "RTX 3090", "RTX 4090", "H100", "H200", "B200", "RTX 5090"]
    assert [gpu.name for gpu in gpus.GPUS] == names
    found = gpus.find_gpu("NVIDIA A100-SXM4-80GB")
    assert found is not None
    assert found.name == "A100"
    assert gpus.find_gpu("NVIDIA GeForce RTX 4090").arch.name == "sm_89"
    assert gpus.find_gpu("NVIDIA T4") is None


def test_the_roofline_is_memory_left_of_the_ridge_and_arithmetic_right_of_it():
    h200 = gpus.find_gpu("NVIDIA H200")
    assert gpus.attainable_tflops(h200, 1.0) == pytest.approx(4.8)
    assert gpus.attainable_tflops(h200, 2 * h200.ridge_flop_per_byte) == h200.tflops
