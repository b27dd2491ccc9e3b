"""Where a path leads."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassgpt.files import nearest_existing_folder


def test_the_nearest_folder_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert nearest_existing_folder(Path("runs")) == tmp_path
    assert nearest_existing_folder(Path("runs/a/b")) == tmp_path
    (tmp_path / "runs").mkdir()
    assert nearest_existing_folder(Path("runs")) == Path("runs")
    assert nearest_existing_folder(tmp_path / "x" / "y") == tmp_path
