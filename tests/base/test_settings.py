"""Settings: read when used, typed, and refused by name when they cannot be."""

import os
import pwd
import tempfile
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
    with pytest.raises(ArgumentError, match="FLASHSMITH_DEVICE is 'tpu'; it must be 'cuda' or"):
        settings.device_name()


def test_the_nvrtc_setting_is_a_path(monkeypatch):
    monkeypatch.delenv("FLASHSMITH_NVRTC", raising=False)
    assert settings.nvrtc_path() is None
    monkeypatch.setenv("FLASHSMITH_NVRTC", "/x/libnvrtc.so.13")
    assert settings.nvrtc_path() == Path("/x/libnvrtc.so.13")


@pytest.mark.parametrize(
    ("name", "read"),
    [("FLASHSMITH_CACHE_DIR", settings.cache_dir), ("FLASHSMITH_RESULTS", settings.results_path)],
)
def test_the_home_of_nobody_is_refused_by_name(monkeypatch, name, read):
    monkeypatch.setenv(name, "~nosuchuser/x")
    with pytest.raises(
        ArgumentError, match=f"{name} is .* ~nosuchuser is not the home of any user"
    ):
        read()


@pytest.fixture
def no_home(monkeypatch, tmp_path):
    """No HOME, no entry of the user, no XDG folders, and temporary files in a place of the test."""

    def nobody(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("FLASHSMITH_CACHE_DIR", "FLASHSMITH_RESULTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings._without_home.cache_clear()
    yield tmp_path / f"flashsmith-{os.getuid()}"
    settings._without_home.cache_clear()


def test_without_a_home_files_go_to_a_private_folder_that_is_said(no_home, caplog):
    assert settings.cache_dir() == settings.cache_dir() == no_home / "cache"
    assert settings.results_path() == no_home / "results.sqlite"
    assert no_home.stat().st_mode & 0o777 == 0o700
    assert [record.args[1] for record in caplog.records] == [
        "FLASHSMITH_CACHE_DIR",
        "FLASHSMITH_RESULTS",
    ]
    assert "there is no home folder (HOME is not set): files are kept in" in caplog.text


def test_without_a_home_the_folder_of_someone_else_is_not_used(no_home, monkeypatch):
    theirs = no_home.with_name("flashsmith-123456")  # made by this user, asked for by that one
    theirs.mkdir()
    monkeypatch.setattr(settings.os, "getuid", lambda: 123456)
    with pytest.raises(ArgumentError, match=r"belongs to someone else; set FLASHSMITH_CACHE_DIR"):
        settings.cache_dir()


def test_tests_neither_read_nor_write_the_measurements_of_who_runs_them(monkeypatch):
    """They choose kernels: `make test` behind `make run` found other ones."""
    here = settings.results_path()
    monkeypatch.delenv("FLASHSMITH_RESULTS")
    assert here != settings.results_path()
