"""A kernel cache of the test's own, and a kernel small enough to compile in a blink."""

import pytest

from flashsmith.compile.kernel_cache import KernelCache

MEGABYTE = 1 << 20


@pytest.fixture
def cache(tmp_path):
    return KernelCache(tmp_path / "cache", 100 * MEGABYTE)
