"""Settings: read when used, typed, and refused by name when they cannot be."""

from pathlib import Path

import pytest

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError


def test_the_cache_lies_where_the_setting_says_else_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path))
    assert settings.cache_dir() == tmp_path
    monkeypatch.delenv("FLASHSMITH_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert settings.cache_dir() == Path("/somewhere/flashsmith")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert settings.cache_dir() == Path.home() / ".cache" / "flashsmith"


def test_the_cache_limit_is_in_megabytes(monkeypatch):
    monkeypatch.delenv("FLASHSMITH_CACHE_LIMIT_MB", raising=False)
    assert settings.cache_limit_bytes() == 2 << 30
    monkeypatch.setenv("FLASHSMITH_CACHE_LIMIT_MB", "3")
    assert settings.cache_limit_bytes() == 3 << 20


@pytest.mark.parametrize("text", ["0", "-1", "lots", "1.5", "9" * 5000])
def test_a_limit_that_is_no_number_of_megabytes_is_refused(monkeypatch, text):
    monkeypatch.setenv("FLASHSMITH_CACHE_LIMIT_MB", text)
    with pytest.raises(ArgumentError, match="FLASHSMITH_CACHE_LIMIT_MB is"):
        settings.cache_limit_bytes()


def test_a_device_is_cuda_or_emulator_or_looked_for(monkeypatch):
    monkeypatch.delenv("FLASHSMITH_DEVICE", raising=False)
    assert settings.device_name() is None
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    assert settings.device_name() == "emulator"
    monkeypatch.setenv("FLASHSMITH_DEVICE", "tpu")
    with pytest.raises(ArgumentError, match="FLASHSMITH_DEVICE is 'tpu'; it is 'cuda' or"):
        settings.device_name()


def test_the_nvrtc_setting_is_a_path(monkeypatch):
    monkeypatch.delenv("FLASHSMITH_NVRTC", raising=False)
    assert settings.nvrtc_path() is None
    monkeypatch.setenv("FLASHSMITH_NVRTC", "/x/libnvrtc.so.13")
    assert settings.nvrtc_path() == Path("/x/libnvrtc.so.13")
