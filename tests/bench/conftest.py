"""A stand-in for Nsight Compute on the PATH."""

import stat

import pytest
from ncu_samples import FAKE_NCU


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    """Puts a stand-in for ncu on the PATH: its first call behaves as the first mode says, …

    The last mode holds for all further calls.
    """
    path = tmp_path / "bin" / "ncu"
    path.parent.mkdir()
    path.write_text(FAKE_NCU)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")

    def behave(*modes):
        path.with_name("modes").write_text(" ".join(modes))
        return path.with_name("arguments")

    return behave
