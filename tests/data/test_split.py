"""A split takes every character exactly once, and a document's side depends on its content alone."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.data.sources import Document
from glassgpt.data.split import DocumentScan, Span, scan_documents, split_documents
from glassgpt.errors import UserError


def scan(folder: Path, texts: list[str]) -> DocumentScan:
    documents = []
    for i, text in enumerate(texts):
        path = folder / f"{i:03}.txt"
        path.write_bytes(text.encode())
        documents.append(Document(path.name, path, path.stat().st_size))
    return scan_documents(documents, "utf-8", lambda done: None)


def read(spans: tuple[Span, ...]) -> list[str]:
    return ["".join(span.text("utf-8", 5)) for span in spans]


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\r\ufeff"), min_size=1, max_size=30),
        min_size=1,
        max_size=6,
    ),
    fraction=st.floats(0.001, 0.999),
)
def test_every_character_is_in_one_split(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], fraction: float
) -> None:
    found = scan(tmp_path_factory.mktemp("split"), texts)
    assert found.characters == "".join(sorted(set("".join(texts))))
    if sum(map(len, texts)) < 2:
        with pytest.raises(UserError, match="cannot be split"):
            split_documents(found, fraction)
        return
    split = split_documents(found, fraction)
    assert split.train
    assert split.val
    spans = sorted((*split.train, *split.val), key=lambda span: (span.document.name, span.start))
    assert all(span.start < span.stop for span in spans)
    assert "".join(read(tuple(spans))) == "".join(texts)


def test_one_document_is_cut_as_nanogpt_cuts_it(tmp_path: Path) -> None:
    text = "नमस्ते दुनिया " * 33
    split = split_documents(scan(tmp_path, [text]), 0.1)
    cut = int(len(text) * 0.9)
    assert read(split.train) == [text[:cut]]
    assert read(split.val) == [text[cut:]]


def test_documents_keep_their_side_in_any_company(tmp_path: Path) -> None:
    texts = [f"document number {i}\n" * 3 for i in range(200)]
    split = split_documents(scan(tmp_path, texts), 0.1)
    assert "chosen by a hash" in split.reason
    val = set(read(split.val))
    assert 0.05 < len(val) / 200 < 0.15
    again = split_documents(scan(tmp_path, texts[::-1][50:]), 0.1)
    assert set(read(again.val)) == val & set(texts[::-1][50:])


def test_copies_never_sit_on_both_sides(tmp_path: Path) -> None:
    texts = [f"document number {i // 2}\n" for i in range(200)]
    split = split_documents(scan(tmp_path, texts), 0.1)
    assert not set(read(split.train)) & set(read(split.val))


def test_a_giant_document_does_not_decide_the_split(tmp_path: Path) -> None:
    split = split_documents(scan(tmp_path, ["small"] * 5 + ["giant " * 1000]), 0.1)
    assert split.reason.startswith("the last 0.1 of the text")
    (tail,) = read(split.val)
    assert len(tail) == 6025 - int(6025 * 0.9)


def test_all_bad_files_are_named(tmp_path: Path) -> None:
    documents = []
    for i in range(14):
        path = tmp_path / f"{i:02}.txt"
        path.write_bytes(b"ok" if i == 3 else b"\xff")
        documents.append(Document(path.name, path, 1))
    with pytest.raises(UserError) as caught:
        scan_documents(documents, "utf-8", lambda done: None)
    problems = caught.value.problems
    assert len(problems) == 11
    assert problems[-1] == "... and 3 more files like these"
    assert not any("03.txt" in problem for problem in problems)


def test_progress_adds_up_to_the_bytes(tmp_path: Path) -> None:
    found = scan(tmp_path, ["é" * 100, "a" * 50])
    done: list[int] = []
    scan_documents(found.documents, "utf-8", done.append)
    assert sum(done) == 250


def test_a_file_that_shrinks_between_passes_is_noticed(tmp_path: Path) -> None:
    (span,) = split_documents(scan(tmp_path, ["a" * 100]), 0.1).train
    span.document.path.write_text("a")
    with pytest.raises(UserError, match="became shorter"):
        list(itertools.chain(span.text("utf-8")))
