"""What prepare writes is what the text says, and a prepare that fails leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import make_documents, write_json_lines
from small_gpt2 import CORPUS, train_small_bpe, write_layouts

from glassgpt import files
from glassgpt.data import prepare as prepare_module
from glassgpt.data import sources, tokenizer_json
from glassgpt.data.dataset import Dataset, open_dataset, verify
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.data.tokenizers import load_tokenizer
from glassgpt.errors import UserError


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.txt"
    path.write_bytes("".join(CORPUS).encode() * 3)
    return path


def made(dataset: Path | str, out: Path, **options: Any) -> Dataset:
    prepare(PrepareOptions(str(dataset), out_dir=str(out), **options), print_line=lambda line: None)
    opened = open_dataset(out)
    verify(opened)
    return opened


def failing(problem: BaseException) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise problem

    return fail


def test_char_is_nanogpts_prepare(tmp_path: Path) -> None:
    text = "To be, or not to be: that is the question.\r\n" * 50
    (tmp_path / "play.txt").write_bytes(text.encode())
    dataset = made(tmp_path / "play.txt", tmp_path / "out")
    # nanoGPT's data/shakespeare_char/prepare.py, line for line.
    with (tmp_path / "play.txt").open() as file:
        text = file.read()
    chars = sorted(set(text))
    stoi = {ch: i for i, ch in enumerate(chars)}
    n = len(text)
    train_data, val_data = text[: int(n * 0.9)], text[int(n * 0.9) :]
    assert dataset.tokens("train").tolist() == [stoi[c] for c in train_data]
    assert dataset.tokens("val").tolist() == [stoi[c] for c in val_data]
    assert dataset.manifest.vocab_size == len(chars)


def test_encodings_and_line_ends_make_no_difference_and_are_said(tmp_path: Path) -> None:
    text = "Ein Käse, ein Glas.\nषड्ज\n" * 20
    windows = text.replace("\n", "\r\n")
    contents = {
        "plain": text.encode(),
        "crlf": windows.encode(),
        "mark": text.encode("utf-8-sig"),
        "utf16": windows.encode("utf-16"),
        "utf16be": b"\xfe\xff" + text.encode("utf-16-be"),
    }
    made_of = {}
    for name, content in contents.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
        made_of[name] = made(tmp_path / f"{name}.txt", tmp_path / name)
    plain = made_of.pop("plain").manifest
    assert not [note for note in plain.notes if "(1 file)" in note]
    for name, dataset in made_of.items():
        assert dataset.manifest.sha256 == plain.sha256
        said = [note for note in dataset.manifest.notes if "(1 file)" in note]
        assert len(said) == (2 if name == "utf16" else 1)
    raw = made(tmp_path / "crlf.txt", tmp_path / "raw", tokenizer="byte").manifest
    assert sum(raw.text_bytes.values()) == len(windows.encode())


@pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe:300", "gpt2"])
def test_the_text_can_be_read_back_from_the_ids(tmp_path: Path, text_file: Path, tokenizer: str) -> None:
    table_files = str(write_layouts(train_small_bpe(), tmp_path / "files")[1]) if tokenizer == "gpt2" else ""
    dataset = made(text_file, tmp_path / "out", tokenizer=tokenizer, tokenizer_files=table_files)
    loaded = load_tokenizer(tmp_path / "out")
    raw = text_file.read_bytes()
    if tokenizer == "byte":
        ids = np.concatenate([dataset.tokens("train"), dataset.tokens("val")])
        assert ids.astype(np.uint8).tobytes() == raw
        assert len(dataset.tokens("train")) == int(len(raw) * 0.9)
    else:
        parts = [loaded.decode(dataset.tokens(split)) for split in ("train", "val")]
        assert "".join(parts) == text_file.read_text(encoding="utf-8")
        assert dict(dataset.manifest.text_bytes) == {
            "train": len(parts[0].encode()),
            "val": len(parts[1].encode()),
        }
        raw = "".join(parts).encode()
    assert sum(dataset.manifest.text_bytes.values()) == len(raw)
    assert (dataset.bytes_per_token("train") or 0) >= 1.0


def test_bytes_need_not_be_text(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 4
    (tmp_path / "any.bin").write_bytes(raw)
    dataset = made(tmp_path / "any.bin", tmp_path / "out", tokenizer="byte")
    ids = np.concatenate([dataset.tokens("train"), dataset.tokens("val")])
    assert ids.tolist() == list(raw)
    with pytest.raises(UserError, match=r"not UTF-8 at byte 128.*--tokenizer byte"):
        made(tmp_path / "any.bin", tmp_path / "out2")


@pytest.mark.parametrize(("tokenizer", "separator"), [("char", "\n"), ("bpe:300", "<|endoftext|>")])
def test_documents_are_separated(tmp_path: Path, tokenizer: str, separator: str) -> None:
    texts = [f"text{i:02}" for i in range(60)]
    folder = tmp_path / "texts"
    folder.mkdir()
    for text in texts:
        (folder / text).write_text(text)
    dataset = made(folder, tmp_path / "out", tokenizer=tokenizer, val_fraction=0.3)
    loaded = load_tokenizer(tmp_path / "out")
    parts = [loaded.decode(dataset.tokens(split)).split(separator) for split in ("train", "val")]
    assert sorted(parts[0] + parts[1]) == texts
    assert parts[0] == sorted(parts[0])
    separators = len(parts[0]) - 1 if tokenizer == "char" else 0  # a special token is no text
    assert dataset.manifest.text_bytes["train"] == 6 * len(parts[0]) + separators


def test_streaming_in_small_chunks_changes_nothing(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = [made(text_file, tmp_path / f"whole-{t}", tokenizer=t).hash for t in ("char", "byte", "bpe:300")]
    document_text = sources.Document.text

    def in_drops(
        self: sources.Document, encoding: str, chunk_bytes: int = 0, changes: list[str] | None = None
    ) -> Iterator[str]:
        return document_text(self, encoding, 7, changes)

    monkeypatch.setattr(sources.Document, "text", in_drops)
    assert hashes == [
        made(text_file, tmp_path / f"drops-{t}", tokenizer=t).hash for t in ("char", "byte", "bpe:300")
    ]


def test_a_vocabulary_over_sixteen_bits_is_stored_in_thirty_two(tmp_path: Path) -> None:
    for size, dtype in ((65_536, "uint16"), (65_537, "uint32")):
        # Every character once, so that every id is used; but \r, which becomes \n.
        text = "".join(chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000 and i != 0xD)[:size]
        path = tmp_path / f"{size}.txt"
        path.write_bytes(text.encode())
        dataset = made(path, tmp_path / str(size), tokenizer="char")
        assert dataset.manifest.dtype == dtype
        ids = np.concatenate([dataset.tokens("train"), dataset.tokens("val")])
        assert np.array_equal(ids, np.arange(size))


def test_auto_chooses_and_says_why(tmp_path: Path) -> None:
    said: list[str] = []
    for count, chosen in ((512, "char"), (513, "bpe:8192")):
        path = tmp_path / f"{count}.txt"
        path.write_text(" ".join(chr(0x4E00 + i) for i in range(count - 1)) * 2, encoding="utf-8")
        manifest = prepare(
            PrepareOptions(str(path), out_dir=str(tmp_path / chosen[:3])), print_line=said.append
        )
        assert manifest.tokenizer == chosen
        note = f"tokenizer {chosen}: the text has {count} different characters"
        assert any(line.startswith(note) for line in said)
        assert any(line.startswith(note) for line in manifest.notes)
    assert any(line.startswith("the text is too small for 8192 tokens, it yields") for line in said)


def test_a_text_too_short_to_validate_on_is_refused(tmp_path: Path) -> None:
    for text, is_enough in (("abcde", False), ("a" * 19, True)):
        (tmp_path / "short.txt").write_text(text)
        if is_enough:
            tokens = made(tmp_path / "short.txt", tmp_path / "out").manifest.tokens
            assert min(tokens.values()) == 2
        else:
            with pytest.raises(UserError, match="at least 2"):
                made(tmp_path / "short.txt", tmp_path / "out")
            assert [path.name for path in tmp_path.iterdir()] == ["short.txt"]


def test_one_character_is_said_in_the_singular(tmp_path: Path) -> None:
    (tmp_path / "same.txt").write_text("a" * 50)
    said: list[str] = []
    prepare(
        PrepareOptions(str(tmp_path / "same.txt"), out_dir=str(tmp_path / "same")), print_line=said.append
    )
    assert any("the text has 1 different character," in line for line in said)


def test_the_default_place_is_data_and_the_name(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(PrepareOptions("mine.txt"), print_line=lambda line: None)
    assert sorted(path.name for path in Path("data/mine").iterdir()) == [
        "manifest.json",
        "train.bin",
        "val.bin",
    ]


def test_preparing_twice_gives_the_same_bytes(tmp_path: Path, text_file: Path) -> None:
    first = made(text_file, tmp_path / "a", tokenizer="bpe:400")
    second = made(text_file, tmp_path / "b", tokenizer="bpe:400")
    assert first.hash == second.hash
    assert first.manifest.sha256 == second.manifest.sha256


def test_nanogpts_script_means_its_dataset(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "nanoGPT" / "data" / "shakespeare_char" / "prepare.py"
    script.parent.mkdir(parents=True)
    script.write_text("raise SystemExit('not to be run, not to be read')")
    said: list[str] = []
    for asked in (str(script), "gone/shakespeare_char/prepare.py"):
        manifest = prepare(
            PrepareOptions(asked, source=str(text_file), overwrite=True), print_line=said.append
        )
        assert manifest.name == "shakespeare_char"
        assert manifest.notes[0] == said[0]
        assert said[0].endswith(
            "prepare.py is nanoGPT's script for shakespeare_char, so this is  glass prepare shakespeare_char"
        )
        said.clear()
    assert open_dataset(Path("data/shakespeare_char")).manifest.source == f"file {text_file}"


def test_nanogpts_files_are_not_in_need_of_it(tmp_path: Path, text_file: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "train.bin").touch()
    with pytest.raises(
        UserError, match=r"holds nanoGPT's files, which need no preparing: train with --data_dir"
    ):
        made(text_file, out, overwrite=True)


def test_nothing_is_overwritten_silently(tmp_path: Path, text_file: Path) -> None:
    out = tmp_path / "out"
    before = made(text_file, out).hash
    with pytest.raises(UserError, match=r"holds a dataset already: add --overwrite"):
        made(text_file, out, tokenizer="byte")
    assert open_dataset(out).hash == before
    assert made(text_file, out, tokenizer="byte", overwrite=True).manifest.tokenizer == "byte"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "out"]


def test_what_prepare_did_not_write_it_does_not_remove(tmp_path: Path, text_file: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    own = out / "input.txt"
    own.write_text("my only copy of this text")
    for source in (text_file, own):
        with pytest.raises(UserError, match="--out_dir"):
            made(source, out, overwrite=True)
    own.rename(tmp_path / "input.txt")
    made(text_file, out)
    (out / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"holds other files \(thesis\.tex\)"):
        made(text_file, out, overwrite=True)
    with pytest.raises(UserError, match="in each other's way"):
        made(tmp_path, tmp_path / "new")
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(UserError, match="not a plain folder"):
        made(text_file, tmp_path / "link", overwrite=True)


@pytest.mark.parametrize("problem", [RuntimeError("bug"), KeyboardInterrupt(), OSError(28, "No space left")])
@pytest.mark.parametrize("step", ["scan_documents", "_choose_tokenizer", "_encode_spans", "commit_folder"])
def test_a_failure_leaves_nothing_behind(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch, step: str, problem: BaseException
) -> None:
    before = made(text_file, tmp_path / "old").hash
    monkeypatch.setattr(prepare_module, step, failing(problem))
    expected = UserError if isinstance(problem, OSError) else type(problem)
    for out, overwrite in (("new", False), ("old", True)):
        with pytest.raises(expected):
            made(text_file, tmp_path / out, overwrite=overwrite)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "old"]
    assert open_dataset(tmp_path / "old").hash == before


def _grows(path: Path) -> None:
    with path.open("a") as file:
        file.write("and new letters: \u00e4\u0434\u3042\n" * 9)


def _is_replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b" ", b"_"))
    other.replace(path)


def _changes_in_place(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1  # its last letter but one, which is for validation
    path.write_bytes(content)


@pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe:300"])
@pytest.mark.parametrize("moment", ["split: ", "tokenizer "])
@pytest.mark.parametrize("happens", [_grows, _is_replaced, _changes_in_place, Path.unlink])
def test_a_text_that_changes_while_it_is_read(
    tmp_path: Path, tokenizer: str, moment: str, happens: Callable[[Path], None]
) -> None:
    """It is read several times. What is written is the text that was split, or nothing."""
    text = tmp_path / "mine.txt"
    text.write_text("the quick brown fox jumps over a lazy dog;\n" * 60)
    whole = made(text, tmp_path / "whole", tokenizer=tokenizer).hash
    options = PrepareOptions(str(text), tokenizer=tokenizer, out_dir=str(tmp_path / "out"))

    def say(line: str) -> None:
        if line.startswith(moment):
            happens(text)

    if happens is _grows:
        prepare(options, print_line=say)
        assert open_dataset(tmp_path / "out").hash == whole
        return
    with pytest.raises(UserError, match=r"was changed while it was read|No such file"):
        prepare(options, print_line=say)
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.txt", "whole"}


def test_what_appeared_meanwhile_is_kept(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = prepare_module._write_dataset

    def meanwhile(*arguments: Any) -> Any:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").touch()
        with pytest.raises(UserError, match="another process is preparing"):
            made(text_file, tmp_path / "other", overwrite=True)
        return write(*arguments)

    made(text_file, tmp_path / "other")
    monkeypatch.setattr(prepare_module, "_write_dataset", meanwhile)
    with (
        files.exclusive_lock(tmp_path / "other"),
        pytest.raises(UserError, match=r"holds other files \(thesis\.tex\)"),
    ):
        made(text_file, tmp_path / "out")
    assert (tmp_path / "out" / "thesis.tex").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "other", "out"]


def test_a_lock_that_was_removed_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it, its owner ends and removes it."""
    tried: list[int] = []

    def lock(descriptor: int) -> bool:
        tried.append(descriptor)
        if len(tried) == 1:
            (tmp_path / ".out.lock").unlink()
        return True

    monkeypatch.setattr(files, "try_lock", lock)
    with files.exclusive_lock(tmp_path / "out"):
        assert (tmp_path / ".out.lock").exists()
        assert len(tried) == 2


def test_a_leftover_of_an_earlier_swap_is_in_nobodys_way(tmp_path: Path, text_file: Path) -> None:
    write_json_lines(tmp_path / "a.jsonl", make_documents(50))
    made(text_file, tmp_path / "out")
    (tmp_path / ".out.old").mkdir()
    (tmp_path / ".out.old" / "train.bin").touch()
    options = PrepareOptions(
        str(tmp_path / "a.jsonl"), tokenizer="byte", out_dir=str(tmp_path / "out"), overwrite=True
    )
    assert prepare(options, lambda line: None, progress=False).tokenizer == "byte"
    assert (tmp_path / ".out.old").exists()


def test_a_failed_swap_puts_the_old_dataset_back(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made(text_file, tmp_path / "out").hash
    rename = Path.rename

    def second_fails(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", second_fails)
    with pytest.raises(UserError, match="Input/output error"):
        made(text_file, tmp_path / "out", tokenizer="byte", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "out"]
    assert open_dataset(tmp_path / "out").hash == before


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = PrepareOptions(
        "shakespear",
        source=str(tmp_path / "none.txt"),
        tokenizer="bte",
        tokenizer_files="nowhere",
        val_fraction=1.0,
        out_dir=str(tmp_path / "file" / "out"),
    )
    with pytest.raises(UserError) as caught:
        prepare(options)
    problems = caught.value.problems
    assert len(problems) == 6
    for expected in ("did you mean shakespeare?", "did you mean byte?", "--val_fraction 1.0", "--source"):
        assert any(expected in problem for problem in problems)
    assert "cannot be written, because of" in problems[-1]


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5, float("nan")])
def test_val_fraction_is_a_fraction(text_file: Path, fraction: float) -> None:
    with pytest.raises(UserError, match="not between 0 and 1"):
        prepare(PrepareOptions(str(text_file), val_fraction=fraction))


def test_without_a_network_text_and_tokenizer_are_both_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SHAKESPEARE_URL", (tmp_path / "nowhere").as_uri())
    monkeypatch.setattr(tokenizer_json, "download_gpt2_ranks", failing(UserError("bring --tokenizer_files")))
    with pytest.raises(UserError) as caught:
        made("shakespeare", tmp_path / "out")
    assert [("--source" in p, "--tokenizer_files" in p) for p in caught.value.problems] == [
        (True, False),
        (False, True),
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    options = PrepareOptions("shakespeare", source=str(tmp_path / "none.txt"), out_dir=str(tmp_path / "out"))
    with pytest.raises(UserError, match=r"--source .*none\.txt is not a file"):
        prepare(options, print_line=lambda line: None, progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("tokenizer", "megabytes"), [("char", 30), ("bpe:500", 20)])
def test_memory_does_not_grow_with_the_text(tmp_path: Path, tokenizer: str, megabytes: int) -> None:
    path = tmp_path / "big.txt"
    line = "It was the best of times, it was the worst of times, " + "नमस्ते " + "1859\n"
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(line.encode() * (1_000_000 // len(line.encode())))
    tracemalloc.start()
    try:
        made(path, tmp_path / "out", tokenizer=tokenizer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > (megabytes - 1) * 1_000_000
    assert peak < 30_000_000


def test_the_manifest_is_for_people_too(tmp_path: Path, text_file: Path) -> None:
    made(text_file, tmp_path / "out")
    text = (tmp_path / "out" / "manifest.json").read_text(encoding="utf-8")
    assert "ह" in text
    assert json.loads(text)["source"] == f"file {text_file}"


def test_reading_a_dataset_imports_nothing_heavy() -> None:
    code = (
        "import sys, glassgpt.data.dataset, glassgpt.data.batches, glassgpt.data.prepare\n"
        "print([m for m in ('torch', 'tiktoken', 'tokenizers', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_a_killed_preparation_left_is_removed(tmp_path: Path, text_file: Path) -> None:
    half, whole = tmp_path / ".out.0123abcd.tmp", tmp_path / ".out.4567cdef.tmp"
    other = tmp_path / ".outer.0123abcd.tmp"
    for folder in (half, whole, other):
        folder.mkdir()
        (folder / "train.bin").write_bytes(b"half of it")
    (whole / "manifest.json").write_text("{}")  # killed between the two renames: that one is complete
    made(text_file, tmp_path / "out")
    assert not half.exists()
    assert whole.exists()
    assert other.exists()


def test_nul_characters_are_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "windows.txt"
    path.write_bytes(("a glass house " * 50).encode("utf-16-le"))
    notes = made(path, tmp_path / "text").manifest.notes
    assert any("NUL characters" in note for note in notes)
    assert not any("NUL" in note for note in made(path, tmp_path / "raw", tokenizer="byte").manifest.notes)
