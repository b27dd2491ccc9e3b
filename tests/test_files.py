"""Files that come from anybody: what is opened, and how much of it is read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from glassgpt.files import (
    nearest_existing_folder,
    read_small_file,
    regular_file_opener,
    regular_file_opener_nofollow,
)


def test_only_regular_files_are_opened_and_nothing_is_waited_for(tmp_path: Path) -> None:
    file, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    file.write_bytes(b"12345")
    link.symlink_to(file)
    os.mkfifo(pipe)
    for path in (file, link):
        with open(path, "rb", opener=regular_file_opener) as opened:
            assert opened.read() == b"12345"
    refused = ((pipe, errno.ENOTSUP), (Path("/dev/zero"), errno.ENOTSUP), (tmp_path, errno.EISDIR))
    for path, number in refused:
        for mode in ("rb", "ab"):
            with pytest.raises(OSError, match=str(path)) as caught:
                open(path, mode, opener=regular_file_opener).close()
            assert caught.value.errno == number
    for mode in ("rb", "ab"):
        with pytest.raises(OSError, match="symbolic link") as caught:
            open(link, mode, opener=regular_file_opener_nofollow).close()
        assert caught.value.errno == errno.ELOOP
        open(file, mode, opener=regular_file_opener_nofollow).close()


def test_a_document_has_a_largest_size(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_small_file(file, max_bytes=5) == b"12345"
    with pytest.raises(OSError, match="5 bytes") as caught:
        read_small_file(file, max_bytes=4)
    assert caught.value.errno == errno.EFBIG
    os.truncate(file, 1 << 40)  # takes no room on the disk
    with pytest.raises(OSError, match="1,099,511,627,776"):
        read_small_file(file)


def test_the_nearest_folder_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert nearest_existing_folder(Path("runs")) == tmp_path
    assert nearest_existing_folder(Path("runs/a/b")) == tmp_path
    (tmp_path / "runs").mkdir()
    assert nearest_existing_folder(Path("runs")) == Path("runs")
    assert nearest_existing_folder(tmp_path / "x" / "y") == tmp_path
