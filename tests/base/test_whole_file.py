"""A file is there whole or not at all, and what a disk refuses is said with the file's name."""

import errno

import pytest

from flashsmith.base.errors import StorageError
from flashsmith.base.whole_file import named_in_errors, scratch_folder, written_whole


def test_a_file_takes_its_place_at_the_end_and_nothing_stays_beside_it(tmp_path):
    path = tmp_path / "new" / "page.html"
    with written_whole(path) as beside:
        beside.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left")])
def test_whatever_ends_the_writing_leaves_the_old_file_and_nothing_beside_it(tmp_path, error):
    path = tmp_path / "page.html"
    path.write_text("old")

    def write():
        with written_whole(path) as beside:
            beside.write_text("half")
            raise error

    with pytest.raises((KeyboardInterrupt, StorageError)):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_scratch_folder_is_private_and_goes(tmp_path):
    with scratch_folder(tmp_path / "KEY") as folder:
        (folder / "half").write_text("half")
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.ENOSPC, r"/target: the disk is full; make room and try again\."),
        (errno.EDQUOT, r"/target: the disk is full; make room and try again\."),
        (errno.EROFS, r"/target: it cannot be written \(.*\); name another path\."),
        (errno.ENOTDIR, r"/target: .*; check the path\."),
    ],
)
def test_an_error_of_the_disk_names_what_one_asked_for(tmp_path, code, says):
    with pytest.raises(StorageError, match=says), named_in_errors(tmp_path / "target"):
        raise OSError(code, "strerror", "/the/source/of/a/copy")
