"""NVRTC through ctypes: loaded with its builtins, and named when it does not load."""

from pathlib import Path

import pytest

from flashsmith.base.errors import CompilerMissing
from flashsmith.compile.nvrtc import program as nvrtc


def test_the_builtins_beside_a_library_are_loaded_before_it(tmp_path, monkeypatch):
    for name in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.13.0"):
        (tmp_path / name).touch()
    loaded = []
    monkeypatch.setattr(nvrtc.ctypes, "CDLL", lambda path: loaded.append(Path(path).name))
    nvrtc._load.__wrapped__(tmp_path / "libnvrtc.so.13")
    assert loaded == ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]


def test_a_file_that_is_no_library_is_named(tmp_path):
    path = tmp_path / "libnvrtc.so.13"
    path.write_text("no library")
    with pytest.raises(CompilerMissing, match=r"libnvrtc\.so\.13 does not load: .*reinstall"):
        nvrtc._load(path)
