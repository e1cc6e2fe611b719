"""A kernel cache of the test's own, and two configurations that stand for all."""

import pytest

from flashsmith.compile.cache.kernel_cache import KernelCache
from flashsmith.kernels import parse_config

MEGABYTE = 1 << 20
SMALL = "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
LARGE = "(FP16, 256, 128, 64, 8): async+swizzled+load_2_2_2_tiles"


@pytest.fixture
def cache(tmp_path):
    """An empty cache."""
    return KernelCache(tmp_path / "cache", 100 * MEGABYTE)


@pytest.fixture(scope="session")
def small():
    """A configuration that fits every architecture and compiles fast."""
    return parse_config(SMALL)


@pytest.fixture(scope="session")
def large():
    """A configuration whose shared memory sm_86 does not have."""
    return parse_config(LARGE)
