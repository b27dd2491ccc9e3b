"""What is not a log: a refusal says what it is. Nothing in such a file is executed."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from glassgpt.errors import UserError
from glassgpt.runs.file_kinds import binary_kind, text_kind
from glassgpt.runs.reading import read_run_log


class Bomb:
    """Unpickling it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (_explode, (str(self.path),))


def _explode(path: str) -> None:
    Path(path).write_text("executed")


def zipped(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, "content")
    return file.getvalue()


def tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("train.log"))
    return file.getvalue()


def numpy_file() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


BINARIES = {
    "PyTorch checkpoint": zipped("ckpt/data.pkl", "ckpt/data/0"),
    "NumPy arrays": zipped("x.npy"),
    "zip file": zipped("hello.txt"),
    "Office document": zipped("[Content_Types].xml"),
    "safetensors": (60).to_bytes(8, "little") + b'{"w":{"dtype":"F32"}}' + bytes(40),
    "NumPy array": numpy_file(),
    "tar archive": tarred(),
    "PNG": b"\x89PNG\r\n\x1a\n" + bytes(50),
    "JPEG": b"\xff\xd8\xff\xe0" + bytes(50),
    "PDF": b"%PDF-1.7\n",
    "Parquet": b"PAR1" + bytes(50),
    "SQLite": b"SQLite format 3\x00" + bytes(50),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(50),
    "GGUF": b"GGUF" + bytes(50),
    "wandb": b":W&B\x01" + bytes(50),
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "xz": b"\xfd7zXZ\x00" + bytes(50),
    "program": b"\x7fELF" + bytes(50),
}


def test_a_line_in_brackets_is_no_json() -> None:
    head = '[INFO|2025-05-28 16:36:49] config.py:677 >> Model config {\n  "rms_norm_eps": 1e-06\n}\n'
    assert "JSON" not in (text_kind(head) or "")


def test_binaries_are_named() -> None:
    assert [name for name, data in BINARIES.items() if name not in (binary_kind(data) or "")] == []


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_named_and_not_loaded(tmp_path: Path, protocol: int) -> None:
    for value in ({"model": 1}, [1, 2, {"a": 3}], Bomb(tmp_path / "executed")):
        path = tmp_path / "ckpt.pt"
        path.write_bytes(pickle.dumps(value, protocol=protocol))
        with pytest.raises(UserError, match="pickle"):
            read_run_log(str(path))
    assert not (tmp_path / "executed").exists()


def test_logs_are_not_taken_for_binaries() -> None:
    for start in (
        b"",
        b"iter 0: loss 4.2\n",
        "\ufeffiter 0".encode(),
        "iter 0".encode("utf-16"),
        b"\x1b[31miter",
        b"BZ",
    ):
        assert binary_kind(start) is None


TEXTS = {
    "Python": "import torch\nfrom x import y\n\ndef main():\n    print('iter 0: loss')\n",
    "shell": "#!/bin/bash\ntorchrun train.py\n",
    "HTML": "<!DOCTYPE html>\n<html></html>",
    "JSON": '{"n_layer": 12, "n_head": 12}',
    "columns are name, age": "name,age\nsomebody,12\nothers,13\n",
    "configuration": "n_layer: 12\nlr: 3e-4\n",
    "binary": "\x00\x01\ufffd\ufffd" * 100,
}


def test_texts_are_named(tmp_path: Path) -> None:
    assert [name for name, text in TEXTS.items() if name not in (text_kind(text) or "")] == []
    assert text_kind("It was the best of times.\nIt was the worst of times.\n") is None
    for name, text in TEXTS.items():
        (tmp_path / "x").write_text(text)
        with pytest.raises(UserError) as caught:
            read_run_log(str(tmp_path / "x"))
        assert name in str(caught.value)


def test_what_a_logger_or_a_terminal_adds_makes_no_table() -> None:
    stamped = [f"2020-03-08 16:33:{at:02},462:INFO: Meta epoch {at}" for at in range(10)]
    ends_with_tab = ["\x1b[?1034hMRR : 0.631\t", "P@1 : 0.492\t", "Score after 1 rounds: 0.034\t"]
    words = ["one, two", "three, four", "five, six"]
    for lines in (stamped, ends_with_tab, words, ["a,b", "1,2"]):
        assert "table" not in (text_kind("\n".join(lines) + "\n") or ""), lines
    for lines in (["a,b", "x,2", "y,3"], ["time\ta", "12:00\t3", "12:01\t4"]):
        assert "table" in (text_kind("\n".join(lines) + "\n") or ""), lines


def test_a_line_that_repeats_with_other_numbers_is_no_configuration() -> None:
    repeated = [f"[round {at}] d_adv: {3 / at:.4f}  f_slf: {6 / at:.4f}" for at in range(1, 9)]
    labelled = ["[PC] 2020-11-11 16:41:00,521 INFO: 7epoch:train:7126-7500batch: lr_0=0.100", "[PC] done"]
    for lines in (repeated, labelled, [f"a: {at} b: {at}.5" for at in range(9)]):
        assert text_kind("\n".join(lines) + "\n") is None, lines
    config = ["[model]", "n_layer = 12", "# 4 of 8", "- 3", *(f"layer_{at} = {at}" for at in range(9))]
    assert "configuration" in (text_kind("\n".join(config) + "\n") or "")


def test_the_first_line_with_numbers_is_shown(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("Hello.\nAfter 12 rounds it was 3.5\x1b[2J.\nMore.\n")
    with pytest.raises(UserError) as caught:
        read_run_log(str(tmp_path / "x"))
    assert "After 12 rounds it was 3.5" in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_columns_without_names() -> None:
    rows = [(at, 6.5 - at / 10) for at in range(9)]
    for separator in ",\t_:":
        kind = text_kind("".join(f"{at}{separator}{loss:.4f}\n" for at, loss in rows)) or ""
        assert "without names" in kind, separator
        assert "6.4" not in kind
    assert "without names" not in (text_kind("name,score\n" + "a,1\n" * 5) or "")
