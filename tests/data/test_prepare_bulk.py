"""Documents in bulk: what goes in comes out, the same whoever did it."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import re
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from corpora import (
    folder_contents,
    make_documents,
    prepare_dataset,
    texts_in,
    use_small_batches,
    write_fineweb_parquet,
    write_json_lines,
)
from small_gpt2 import train_small_bpe, write_layouts

from glassgpt.data import document_readers, encoder, prepare_bulk, progress
from glassgpt.data.dataset import open_dataset
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.data.split import document_key, is_validation_mask
from glassgpt.errors import UserError

TEXTS = make_documents(200)


def is_held_out(text: str, fraction: float = 0.2) -> bool:
    return bool(is_validation_mask(np.array([document_key(text.encode())], dtype=np.uint64), fraction)[0])


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_batches(monkeypatch)


@pytest.mark.parametrize(
    "name",
    ["a.parquet", "a.jsonl", "a.jsonl.gz", "a.jsonl.xz", "a.jsonl.zst", "a.json.gz", "folder", "pattern"],
)
def test_every_layout_gives_the_same_dataset(tmp_path: Path, name: str) -> None:
    source: Path | str = tmp_path / name
    if name == "a.parquet":
        write_fineweb_parquet(tmp_path / name, TEXTS)
    elif name == "folder":
        write_fineweb_parquet(tmp_path / name / "sample" / "000.parquet", TEXTS[:90])
        write_json_lines(tmp_path / name / "sample" / "001.jsonl.gz", TEXTS[90:])
        (tmp_path / name / "README.md").write_text("About this dataset.")
    elif name == "pattern":
        for i, text in enumerate(TEXTS):
            (tmp_path / "texts" / str(i % 3)).mkdir(parents=True, exist_ok=True)
            (tmp_path / "texts" / str(i % 3) / f"{i:03}.txt").write_text(text, encoding="utf-8")
        source = f"{tmp_path}/texts/**/*.txt"
    else:
        write_json_lines(tmp_path / name, TEXTS)
    dataset = prepare_dataset(source, tmp_path / "out")
    train, val = texts_in(dataset, "train"), texts_in(dataset, "val")
    assert sorted(train) == sorted(text for text in TEXTS if not is_held_out(text))
    assert sorted(val) == sorted(text for text in TEXTS if is_held_out(text))
    if name != "pattern":
        assert train == [text for text in TEXTS if not is_held_out(text)]  # in the order they came
    manifest = dataset.manifest
    assert manifest.text_bytes["train"] == sum(len(text.encode()) for text in train)
    assert f"{len(train)} training and {len(val)} validation documents" in manifest.notes


def test_a_table_among_texts_is_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    for i, text in enumerate(TEXTS):
        (folder / f"{i:03}.py").write_text(text, encoding="utf-8")
    write_json_lines(folder / "fixture.jsonl", ["a row"])
    assert prepare_dataset(folder, tmp_path / "small").manifest.split_files("train") == ["train.bin"]
    # The same when it is large, and so read in bulk.
    monkeypatch.setattr("glassgpt.data.corpus.LARGE_FOLDER_BYTES", 1000)
    dataset = prepare_dataset(folder, tmp_path / "large")
    assert dataset.manifest.split_files("train") == ["train-00000.bin"]
    assert len(texts_in(dataset, "train")) + len(texts_in(dataset, "val")) == len(TEXTS) + 1


def test_the_ids_are_those_of_each_document_alone(tmp_path: Path) -> None:
    tricky = ["ends in blanks  \n\n", "\n begins in them", "a <|endoftext|> of its own", " " * 20_000 + "x"]
    write_json_lines(tmp_path / "a.jsonl", tricky + TEXTS[:20])
    dataset = prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", val_fraction=0.3)
    from glassgpt.data.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(tmp_path / "out")
    expected = [
        id
        for text in tricky + TEXTS[:20]
        if not is_held_out(text, 0.3)
        for id in [*tokenizer.encode(text).tolist(), tokenizer.eot]
    ]
    assert dataset.tokens("train")[:].tolist() == expected


@pytest.mark.parametrize("tokenizer", ["byte", "gpt2", "bpe:300"])
def test_the_number_of_workers_changes_nothing(tmp_path: Path, tokenizer: str) -> None:
    write_fineweb_parquet(tmp_path / "a.parquet", TEXTS)
    files = str(write_layouts(train_small_bpe(), tmp_path / "files")[1]) if tokenizer == "gpt2" else ""
    options: dict[str, Any] = {"tokenizer": tokenizer, "tokenizer_files": files, "shard_tokens": 500}
    prepare_dataset(tmp_path / "a.parquet", tmp_path / "one", workers=1, **options)
    prepare_dataset(tmp_path / "a.parquet", tmp_path / "two", workers=2, **options)
    assert folder_contents(tmp_path / "one") == folder_contents(tmp_path / "two")
    assert len(open_dataset(tmp_path / "one").manifest.split_files("train")) > 3


def test_the_split_does_not_depend_on_the_order(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    write_json_lines(tmp_path / "b.jsonl", TEXTS[::-1])
    a, b = (prepare_dataset(tmp_path / f"{name}.jsonl", tmp_path / name) for name in "ab")
    assert sorted(texts_in(a, "val")) == sorted(texts_in(b, "val"))


def test_a_folder_of_texts_splits_in_bulk_as_it_does_else(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for i, text in enumerate(TEXTS):
        (folder / f"{i:03}.txt").write_text(text, encoding="utf-8")
    else_way = prepare_dataset(folder, tmp_path / "a")
    in_bulk = prepare_dataset(f"{folder}/*.txt", tmp_path / "b")
    assert else_way.manifest.split_files("val") == ["val.bin"]
    decoded = texts_in(in_bulk, "val")
    assert len(decoded) == sum(map(is_held_out, TEXTS))
    notes = " ".join(else_way.manifest.notes)
    assert f"{len(decoded)} of 200 documents, chosen by a hash" in notes


def test_shards_are_full_but_for_the_last(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    dataset = prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=700)
    names = dataset.manifest.split_files("train")
    sizes = [(tmp_path / "out" / name).stat().st_size for name in names]
    assert names[:2] == ["train-00000.bin", "train-00001.bin"]
    assert set(sizes[:-1]) == {1400}
    assert 0 < sizes[-1] <= 1400
    whole = prepare_dataset(tmp_path / "a.jsonl", tmp_path / "whole")
    assert dataset.tokens("train")[:].tolist() == whole.tokens("train")[:].tolist()


def test_copies_are_left_out_on_request(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS[:60] + TEXTS[:30] + TEXTS[40:80])
    dataset = prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", dedup=True)
    assert texts_in(dataset, "train") == [text for text in TEXTS[:80] if not is_held_out(text)]
    assert any("left out 50 documents" in note for note in dataset.manifest.notes)
    with_copies = prepare_dataset(tmp_path / "a.jsonl", tmp_path / "all")
    assert sum(with_copies.manifest.tokens.values()) > sum(dataset.manifest.tokens.values())


def test_empty_documents_are_left_out(tmp_path: Path) -> None:
    write_fineweb_parquet(tmp_path / "a.parquet", ["", None, *TEXTS[:30], ""])
    dataset = prepare_dataset(tmp_path / "a.parquet", tmp_path / "out")
    assert texts_in(dataset, "train") == [text for text in TEXTS[:30] if not is_held_out(text)]
    assert "left out 3 empty documents" in dataset.manifest.notes
    (tmp_path / "b.jsonl").write_text("\n\n".join(json.dumps({"text": t}) for t in ["", *TEXTS[:30]]))
    again = prepare_dataset(tmp_path / "b.jsonl", tmp_path / "out2")
    assert "left out 1 empty document" in again.manifest.notes
    assert texts_in(again, "train") == texts_in(dataset, "train")


def test_half_a_character_is_replaced_and_told(tmp_path: Path) -> None:
    lines = [json.dumps({"text": text}) for text in TEXTS[:30]] + [r'{"text": "half \ud83d of it"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    dataset = prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", val_fraction=0.5)
    assert "half ? of it" in texts_in(dataset, "train") + texts_in(dataset, "val")
    assert any("1 document half" in note for note in dataset.manifest.notes)


def test_a_large_corpus_has_its_bpe_from_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(4):
        write_json_lines(tmp_path / "many" / f"{i}.jsonl", make_documents(100, 100 * i))
    monkeypatch.setattr(prepare_bulk, "MAX_BPE_SAMPLE_BYTES", 8000)
    monkeypatch.setattr(prepare_bulk, "_MAX_SAMPLED_FILES", 2)
    notes = prepare_dataset(tmp_path / "many", tmp_path / "out").manifest.notes
    assert any("0.0 MB from 2 files" in note for note in notes)
    monkeypatch.undo()
    notes = prepare_dataset(tmp_path / "many", tmp_path / "all").manifest.notes
    assert any(re.search(r"bpe:300\b.*\ball\b", note) for note in notes)


# --- what can go wrong ---


def failing(tmp_path: Path, source: Path | str, **options: Any) -> str:
    """The complaint; and nothing is left behind."""
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(UserError) as caught:
        prepare_dataset(source, tmp_path / "out", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    return str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_line_that_is_no_text_is_named(tmp_path: Path, workers: int) -> None:
    good = [json.dumps({"text": text}).encode() for text in TEXTS[:50]]
    bad = {
        b'{"text": "caf\xe9"}': "line 51 is not UTF-8 at its byte 13",
        b'{"text": "abc': "line 51 is not JSON",
        b"[1, 2]": "line 51 is not a JSON object: write one object per line, with the text in it",
        b'{"content": "x", "id": 3}': "line 51 has the fields content, id and no 'text': name the one",
        b'{"text": 5}': "line 51: its 'text' is int, not text",
    }
    for line, complaint in bad.items():
        (tmp_path / "a.jsonl").write_bytes(b"\n".join([*good, line, *good]))
        assert f"a.jsonl, {complaint}" in failing(tmp_path, tmp_path / "a.jsonl", workers=workers)


@pytest.mark.parametrize("first", [True, False])
def test_parcels_without_a_text_are_passed_over(tmp_path: Path, first: bool) -> None:
    """Seven rows are a batch, and what the disk is asked for is foreseen from the first."""
    empty: list[str | None] = [None, ""] * 7
    write_fineweb_parquet(tmp_path / "a.parquet", [*empty, *TEXTS] if first else [*TEXTS, *empty])
    dataset = prepare_dataset(tmp_path / "a.parquet", tmp_path / "out")
    assert texts_in(dataset, "train") == [text for text in TEXTS if not is_held_out(text)]
    assert "left out 14 empty documents" in dataset.manifest.notes


def test_mixed_encodings_name_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for i, text in enumerate(TEXTS[:20]):
        (folder / f"{i:02}.txt").write_text(text, encoding="utf-8")
    (folder / "07.txt").write_bytes("Käse".encode("latin-1"))
    complaint = failing(tmp_path, f"{folder}/*.txt")
    assert re.search(rf"{folder}/07\.txt .*UTF-8.* byte 1\b", complaint)
    dataset = prepare_dataset(f"{folder}/*.txt", tmp_path / "bytes", tokenizer="byte", val_fraction=0.5)
    ids = np.concatenate([dataset.tokens("train")[:], dataset.tokens("val")[:]]).astype(np.uint8).tobytes()
    assert b"K\xe4se\n" in ids
    # Binary files are left out, and that is said.
    (folder / "picture.txt").write_bytes(b"\0\1\2")
    notes = prepare_dataset(f"{folder}/[p1]*.txt", tmp_path / "some", val_fraction=0.5).manifest.notes
    assert "skipped 1 binary file" in notes


@pytest.mark.parametrize("suffix", ["gz", "xz", "zst"])
def test_compressed_texts_are_texts(tmp_path: Path, suffix: str) -> None:
    """Whatever bytes they have on the disk. A picture is none, packed or not."""
    pack: dict[str, Any] = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.compress}
    folder = tmp_path / "texts"
    folder.mkdir()
    for i, text in enumerate(TEXTS[:40]):
        (folder / f"{i:02}.txt.{suffix}").write_bytes(pack[suffix](text.encode()))
    (folder / f"picture.png.{suffix}").write_bytes(pack[suffix](b"png\0" * 10))
    dataset = prepare_dataset(f"{folder}/*", tmp_path / "made")
    assert sorted(texts_in(dataset, "train") + texts_in(dataset, "val")) == sorted(TEXTS[:40])
    assert "skipped 1 binary file" in dataset.manifest.notes
    assert "(skipped 1 binary file)" in failing(tmp_path, f"{folder}/p*")


def test_encodings_and_line_ends_of_texts_make_no_difference(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    encodings = ("utf-8", "utf-8-sig", "utf-16")
    for i, text in enumerate(TEXTS[:30]):
        lines = text.replace("\n", "\r\n") if i % 2 else text
        (folder / f"{i:02}.txt").write_bytes(lines.encode(encodings[i % 3]))
    dataset = prepare_dataset(f"{folder}/*", tmp_path / "made")
    assert sorted(texts_in(dataset, "train") + texts_in(dataset, "val")) == sorted(TEXTS[:30])
    assert any("UTF-16" in note for note in dataset.manifest.notes)


def test_a_file_is_read_once_however_many_names_it_has(tmp_path: Path) -> None:
    """A link that leads in a circle made forty copies of everything."""
    folder = tmp_path / "texts"
    (folder / "below").mkdir(parents=True)
    for i, text in enumerate(TEXTS[:20]):
        (folder / "below" / f"{i:02}.txt").write_text(text, encoding="utf-8")
    (folder / "circle").symlink_to(folder)
    dataset = prepare_dataset(f"{folder}/**/*.txt", tmp_path / "out", val_fraction=0.5)
    assert sorted(texts_in(dataset, "train") + texts_in(dataset, "val")) == sorted(TEXTS[:20])
    assert any(note.startswith("skipped ") and "repeated files" in note for note in dataset.manifest.notes)


def test_links_to_folders_are_said_to_be_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "crawl"
    folder.mkdir()
    write_json_lines(folder / "a.jsonl", TEXTS[:40])
    (folder / "linked").symlink_to(tmp_path)
    notes = prepare_dataset(folder, tmp_path / "out").manifest.notes
    assert any(note.startswith("skipped 1 linked folder") for note in notes)


def test_nothing_but_empty_documents_is_said(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "a.jsonl", [""] * 7)
    assert "7 empty documents" in failing(tmp_path, tmp_path / "a.jsonl")


def test_two_columns_of_one_name_are_not_called_damage(tmp_path: Path) -> None:
    columns = [pa.array(range(40)), pa.array(TEXTS[:40])]
    pq.write_table(pa.Table.from_arrays(columns, names=["text", "text"]), tmp_path / "a.parquet")
    assert "has 2 columns 'text'" in failing(tmp_path, tmp_path / "a.parquet")


def test_learning_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB take a minute, and nothing else is said meanwhile."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    said: list[str] = []
    options = PrepareOptions(str(tmp_path / "a.jsonl"), tokenizer="bpe:300", out_dir=str(tmp_path / "out"))
    prepare(options, said.append)
    assert any(re.match("training bpe:300, .*: 0.0%, 0 of 100 MB, ", line) for line in said)


def test_no_processes_are_no_fault_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without shared memory there are no locks, and so no workers."""

    def without_shared_memory(*args: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(encoder, "ProcessPoolExecutor", without_shared_memory)
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    complaint = failing(tmp_path, tmp_path / "a.jsonl", workers=2)
    assert "--workers 1" in complaint
    assert "--out_dir" not in complaint


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"text": text}) for text in TEXTS[:40])
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8-sig")
    assert len(texts_in(prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out"), "train")) > 20


def test_parquet_without_the_column_says_which_there_are(tmp_path: Path) -> None:
    write_fineweb_parquet(tmp_path / "many" / "a.parquet", TEXTS)
    write_fineweb_parquet(tmp_path / "many" / "b.parquet", TEXTS)
    complaint = failing(tmp_path, tmp_path / "many", text_column="content")
    assert len(re.findall("'content'.* text, id, dump", complaint)) == 2
    complaint = failing(tmp_path, tmp_path / "many", text_column="score")
    assert "its column 'score' holds double, not text" in complaint
    assert (
        len(texts_in(prepare_dataset(tmp_path / "many", tmp_path / "urls", text_column="url"), "train")) > 300
    )


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.xz", ".jsonl.zst", ".parquet"])
def test_a_damaged_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    whole = (write_fineweb_parquet if suffix == ".parquet" else write_json_lines)(
        path, make_documents(3000)
    ).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])  # a download that broke off
    assert f"a{suffix} is damaged" in failing(tmp_path, path)
    here = 2000 if suffix == ".parquet" else len(whole) // 2  # in the column of the text, which comes first
    path.write_bytes(whole[:here] + b"\xff" * 50 + whole[here + 50 :])
    assert f"a{suffix} is damaged" in failing(tmp_path, path)


def test_compressed_members_follow_each_other(tmp_path: Path) -> None:
    for suffix in ("gz", "xz", "zst"):
        path = write_json_lines(tmp_path / f"a.jsonl.{suffix}", TEXTS[:100])
        first = path.read_bytes()
        path.write_bytes(first + write_json_lines(path, TEXTS[100:]).read_bytes())
        dataset = prepare_dataset(path, tmp_path / suffix)
        assert texts_in(dataset, "train") == [text for text in TEXTS if not is_held_out(text)]
        path.write_bytes(first + b"\0" * 8)
        prepare_dataset(path, tmp_path / f"{suffix}-padded")
        path.write_bytes(first + b"this is no second member")
        assert f"a.jsonl.{suffix} is damaged" in failing(tmp_path, path)


def test_a_line_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_readers, "MAX_DOCUMENT_BYTES", 10_000)
    short = json.dumps({"text": TEXTS[0]})
    (tmp_path / "a.jsonl").write_text("\n".join([short] * 30 + ['{"text": "' + "x" * 20_000 + '"}', short]))
    assert re.search(r"a\.jsonl, line 31 .*\b0 MB", failing(tmp_path, tmp_path / "a.jsonl"))
    (tmp_path / "b.txt").write_text("x" * 20_000)
    assert re.search(r"b\.txt .*\b0 MB", failing(tmp_path, f"{tmp_path}/b*.txt"))


def test_a_long_row_of_parquet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_readers, "MAX_DOCUMENT_BYTES", 10_000)
    write_fineweb_parquet(tmp_path / "a.parquet", [*TEXTS[:30], "x" * 20_000, *TEXTS[30:]])
    assert re.search(r"a\.parquet, document 31 .*\b0 MB", failing(tmp_path, tmp_path / "a.parquet"))


@pytest.mark.parametrize("text", ["equal", "different"])
def test_long_rows_of_parquet_are_not_in_memory_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.undo()
    texts = [("x" if text == "equal" else str(i)) * 500_000 for i in range(100, 300)]
    path = write_fineweb_parquet(tmp_path / "a.parquet", texts, rows=200)
    # What is read and not yet handed out: of Python by tracemalloc, of arrow by itself.
    tracemalloc.start()
    most = read = 0
    for batch in document_readers.ParquetReader(path, path.stat().st_size, "text").read_batches(skip=3):
        most, read = max(most, pa.total_allocated_bytes()), read + len(batch.items)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read == 197
    assert peak < 20e6
    if text == "equal":  # a page of long texts is read as a whole, however it is handed out
        assert most < 60e6


def test_too_few_documents_to_split(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "a.jsonl", [next(text for text in TEXTS if not is_held_out(text))])
    assert "of 1 document none" in failing(tmp_path, tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text("")
    assert "no text" in failing(tmp_path, tmp_path / "b.jsonl", tokenizer="byte")


def test_the_disk_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    said: list[str] = []
    options = PrepareOptions(str(tmp_path / "a.jsonl"), out_dir=str(tmp_path / "fits"), tokenizer="byte")
    manifest = prepare(options, said.append, progress=False)
    (line,) = [line for line in said if "tokens to come" in line]
    foreseen = float(line.split()[1].rstrip("k")) * 1000
    assert foreseen == pytest.approx(sum(manifest.tokens.values()), rel=0.3)

    class Full:
        free = 1024

    monkeypatch.setattr("shutil.disk_usage", lambda path: Full)
    assert re.search(r"\b1\.0 KiB free: .*--out_dir", failing(tmp_path, tmp_path / "a.jsonl"))


def test_options_that_do_not_fit_are_all_told(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    complaint = failing(tmp_path, tmp_path / "a.jsonl", tokenizer="char", workers=0, shard_tokens=0)
    flags = re.findall(r"^--\w+ \w+", complaint, re.M)
    assert flags == ["--tokenizer char", "--workers 0", "--shard_tokens 0"]
    (tmp_path / "a.txt").write_text("text")
    complaint = failing(tmp_path, tmp_path / "a.txt", workers=2, text_column="x", dedup=True)
    assert re.findall(r"^--\w+", complaint, re.M) == ["--text_column", "--dedup", "--workers"]
    assert "*.nothing" in failing(tmp_path, f"{tmp_path}/*.nothing")


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Of the process and its workers together, at one and at six times the text."""
    script = tmp_path / "go.py"
    script.write_text(MEASURED)
    peaks = []
    for times in (1, 6):
        path = write_json_lines(tmp_path / f"{times}.jsonl", make_documents(40_000) * times)
        command = [sys.executable, str(script), str(path), str(tmp_path / f"out{times}")]
        process = psutil.Popen(command)
        peaks.append(0)
        while process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                tree = [process, *process.children(recursive=True)]
                peaks[-1] = max(peaks[-1], sum(one.memory_info().rss for one in tree))
            time.sleep(0.02)
        assert process.returncode == 0
    assert path.stat().st_size > 60e6
    assert peaks[1] < peaks[0] + 30e6


MEASURED = """
import sys
from glassgpt.data.prepare import PrepareOptions, prepare
if __name__ == "__main__":
    prepare(PrepareOptions(sys.argv[1], out_dir=sys.argv[2], tokenizer="byte", val_fraction=0.1,
                           shard_tokens=1_000_000, workers=2), lambda line: None, progress=False)
"""


def test_a_file_with_a_wrong_name_is_not_called_damaged(tmp_path: Path) -> None:
    plain = write_json_lines(tmp_path / "a.jsonl", TEXTS).read_bytes()
    packed = write_json_lines(tmp_path / "b.jsonl.gz", TEXTS).read_bytes()
    for suffix in (".gz", ".xz", ".zst"):
        path = tmp_path / f"c.jsonl{suffix}"
        path.write_bytes(plain)  # as browsers leave it
        assert re.search(rf"c\.jsonl{suffix} .*: remove {suffix} ", failing(tmp_path, path))
    path.write_bytes(packed)
    assert re.search(r"\.gz, not \.zst: rename .*\.gz\b", failing(tmp_path, path))
    path = tmp_path / "d.jsonl"
    path.write_bytes(packed)
    assert re.search(r"line 1 .*: add \.gz ", failing(tmp_path, path))


@pytest.mark.parametrize("inside", [None, "folder"])
def test_what_is_in_the_way_of_the_work_is_left_alone(tmp_path: Path, inside: str | None) -> None:
    work = tmp_path / ".out.unfinished"
    if inside is None:
        work.write_text("mine")
    else:
        (work / inside).mkdir(parents=True)
    path = write_json_lines(tmp_path / "a.jsonl", TEXTS)
    with pytest.raises(UserError, match=r"\.out\.unfinished is in the way: remove it"):
        prepare_dataset(path, tmp_path / "out")
    assert work.read_text() == "mine" if inside is None else (work / inside).is_dir()
