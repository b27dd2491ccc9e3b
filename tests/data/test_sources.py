"""Text arrives exactly as it lies on the disk, in small pieces, and what cannot be read is named."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.cli import main
from glassgpt.data import sources
from glassgpt.data.corpus import is_corpus, open_corpus
from glassgpt.data.prepare_options import PrepareOptions, check_options
from glassgpt.data.sources import (
    Document,
    Source,
    dataset_of_nanogpt_script,
    dataset_problem,
    is_cached_download,
    open_source,
)
from glassgpt.errors import UserError

PLAY = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"


def source_of(dataset: Path | str, local_file: str = "", folder: Path = Path("nowhere")) -> Source:
    return open_source(str(dataset), local_file, download_to=folder, cached_in=folder / "before")


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=60), chunk_bytes=st.integers(1, 9))
def test_text_survives_any_chunking(
    tmp_path_factory: pytest.TempPathFactory, text: str, chunk_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "t"
    path.write_bytes(text.encode())
    document = Document("t", path, path.stat().st_size)
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    assert "".join(document.text("utf-8", chunk_bytes)) == plain
    assert "".join(document.text("latin-1", chunk_bytes)).encode("latin-1") == text.encode()


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("raw", "offset"), [(b"\xff", 0), ("é".encode() * 7 + b"\xc3(", 14), (b"abc\xe0\xa4", 3)]
)
def test_invalid_utf8_is_named_with_its_byte(
    tmp_path: Path, raw: bytes, offset: int, chunk_bytes: int
) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=rf"latin\.txt is not UTF-8 at byte {offset}: .*--tokenizer byte"):
        list(Document("latin.txt", path, len(raw)).text("utf-8", chunk_bytes))


def test_a_folder_is_its_visible_text_files_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a.txt", ".hidden", ".git/config", "a/no_suffix"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "empty.txt").touch()
    source = source_of(tmp_path)
    assert [document.name for document in source.documents] == ["a.txt", "a/no_suffix", "a/z.md", "b.txt"]
    assert source.notes == ("skipped 1 binary file", "skipped 2 hidden files", "skipped 1 empty file")


def test_a_folder_that_is_closed_to_us_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text would be missing, and nobody would know."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_text("text")
    scandir = os.scandir

    def refusing(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(UserError, match=r"closed cannot be read: Permission denied"):
        source_of(tmp_path)
    with pytest.raises(UserError, match=r"closed cannot be read: Permission denied"):
        is_corpus(str(tmp_path))


def test_links_to_folders_are_not_followed_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "circle").symlink_to(tmp_path)
    source = source_of(tmp_path)
    assert [document.name for document in source.documents] == ["a.txt"]
    assert source.notes == ("skipped 1 linked folder; a pattern in quotes, 'FOLDER/**/*', follows links",)


def test_packed_text_is_to_be_unpacked(tmp_path: Path) -> None:
    """Its bytes, which --tokenizer byte would learn, are nobody's text."""
    path = tmp_path / "book.txt.gz"
    path.write_bytes(gzip.compress(PLAY))
    with pytest.raises(UserError, match="unpack it first"):
        list(Document("book", path, 9).text("utf-8"))


@pytest.mark.parametrize("name", ["pipe", "pipe.jsonl"])
def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    options = PrepareOptions(str(tmp_path / name))
    with pytest.raises(UserError, match="neither a file nor a folder"):
        check_options(options, tmp_path / "out")


def test_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match=r"folder has no text files: there is nothing"):
        source_of(tmp_path / "folder")
    (tmp_path / "folder" / "x.bin").write_bytes(b"\0")
    with pytest.raises(UserError, match=r"\(skipped 1 binary file\)"):
        source_of(tmp_path / "folder")
    with pytest.raises(UserError, match=r"empty\.txt is empty"):
        source_of(tmp_path / "empty.txt")
    with pytest.raises(UserError, match=r"empty\.txt is empty"):
        source_of("shakespeare", str(tmp_path / "empty.txt"))


def test_unknown_names_get_the_nearest_one() -> None:
    assert dataset_problem("pylib") is None
    assert "did you mean shakespeare_char?" in (dataset_problem("shakespeare_chr") or "")
    assert "known names: pylib" in (dataset_problem("no/such/file.txt") or "")
    assert "give a file, a folder" in (dataset_problem("") or "")


def test_nanogpts_scripts_name_their_dataset() -> None:
    cases: list[tuple[str, str | None]] = [
        ("data/shakespeare_char/prepare.py", "shakespeare_char"),
        ("/home/me/nanoGPT/data/shakespeare/prepare.py", "shakespeare"),
        ("shakespeare/prepare.py", "shakespeare"),
        ("prepare.py", None),
        ("./prepare.py", None),
        ("../prepare.py", None),
        ("data/shakespeare/prepare.txt", None),
    ]
    wrong = [(asked, name, got) for asked, name in cases if (got := dataset_of_nanogpt_script(asked)) != name]
    assert wrong == []


def test_nanogpts_script_of_something_else_is_to_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "prepare.py").touch()
    assert "run it with python" in (dataset_problem("mine/prepare.py") or "")
    assert dataset_problem("data/openwebtext/prepare.py") is None


def test_pylib_is_readable_code_in_a_fixed_order() -> None:
    source = source_of("pylib")
    names = [document.name for document in source.documents]
    assert names == sorted(names)
    assert {"argparse.py", "json/decoder.py", "encodings/aliases.py"} <= set(names)
    assert not [n for n in names if "/test" in n or n.startswith("test") or "site-packages" in n]
    assert not {"html/entities.py", "encodings/cp1252.py", "pydoc_data/topics.py"} & set(names)
    assert all(document.path.read_bytes().isascii() for document in source.documents[::20])
    assert source_of("pylib") == source


@pytest.fixture
def canonical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A short play that stands for tiny shakespeare, behind a URL that needs no network."""
    path = tmp_path / "server" / "play.txt"
    path.parent.mkdir()
    path.write_bytes(PLAY)
    monkeypatch.setattr(sources, "SHAKESPEARE_URL", path.as_uri())
    monkeypatch.setattr(sources, "SHAKESPEARE_SHA256", hashlib.sha256(PLAY).hexdigest())
    return path


def test_shakespeare_is_downloaded_and_kept(canonical: Path, tmp_path: Path) -> None:
    source = source_of("shakespeare_char", folder=tmp_path)
    assert [document.path for document in source.documents] == [tmp_path / "input.txt"]
    assert (tmp_path / "input.txt").read_bytes() == PLAY
    assert is_cached_download(tmp_path / "input.txt")
    # The next time it comes from the dataset that is there, not from the network.
    canonical.unlink()
    again = tmp_path / "again"
    again.mkdir()
    open_source("shakespeare_char", "", download_to=again, cached_in=tmp_path)
    assert (again / "input.txt").read_bytes() == PLAY


def test_shakespeare_without_a_network_says_what_to_do(canonical: Path, tmp_path: Path) -> None:
    canonical.unlink()
    with pytest.raises(UserError, match=r"could not be downloaded .*glass prepare shakespeare --source FILE"):
        source_of("shakespeare", folder=tmp_path)
    canonical.write_text("<html>Welcome to our hotel</html>")
    with pytest.raises(UserError, match="is not tiny shakespeare"):
        source_of("shakespeare", folder=tmp_path)
    assert not (tmp_path / "input.txt").exists()


def test_shakespeare_from_a_local_file(canonical: Path, tmp_path: Path) -> None:
    assert source_of("shakespeare_char", str(canonical)).notes == ()
    other = tmp_path / "other.txt"
    other.write_text("Once upon a time")
    (note,) = source_of("shakespeare_char", str(other)).notes
    assert "not the canonical tiny shakespeare" in note


def test_names_without_a_file_are_counted(tmp_path: Path) -> None:
    """A link whose file was moved away would otherwise be missing from the text, and nobody would know."""
    (tmp_path / "a.txt").write_bytes(PLAY)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    os.mkfifo(tmp_path / "pipe")
    note = "skipped 2 names: links that lead nowhere, or pipes"
    assert note in source_of(tmp_path).notes
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "a glass house"}\n' * 20)
    assert note in open_corpus(str(tmp_path), "", "text").notes


def test_what_is_no_text_is_told_what_to_do(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, bytes, str]] = [
        ("a.docx", b"PK\x03\x04\xff", "save the text in it as a plain .txt file"),
        ("a.PDF", b"%PDF-1.7\n%\xe2\xe3", "save the text in it as a plain .txt file"),
        ("a.txt", gzip.compress(PLAY, mtime=0), "unpack it first"),
        ("a.txt", b"caf\xe9", "convert it to UTF-8"),
        ("a.txt", PLAY.decode().encode("utf-16")[:-1], "not UTF-16 at byte"),
    ]
    for name, content, fix in cases:
        with subtests.test(name):
            path = tmp_path / name
            path.write_bytes(content)
            with pytest.raises(UserError, match=fix):
                "".join(Document(name, path, len(content)).text("utf-8"))


def test_files_of_ids_need_no_preparing(tmp_path: Path) -> None:
    for name in ("train.bin", "val.bin"):
        (tmp_path / name).write_bytes(bytes(100))
    with pytest.raises(UserError, match=f"which need no preparing: train with --data_dir={tmp_path}"):
        source_of(tmp_path)


def test_a_file_that_vanishes_while_a_folder_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "texts" / name).write_text("glass houses " * 40)
    look = sources._looks_binary

    def look_and_remove(path: Path) -> bool:
        found = look(path)
        path.unlink()
        return found

    monkeypatch.setattr(sources, "_looks_binary", look_and_remove)
    assert main(["prepare", str(tmp_path / "texts"), f"--out_dir={tmp_path / 'data'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a.txt" in line
    assert "--out_dir" not in line
    assert not (tmp_path / "data").exists()
