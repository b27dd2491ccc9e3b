"""Our writer of safetensors: the library reads back what was written, and the digest fits the file."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from glassgpt.data import digests
from glassgpt.data.digests import sha256_in_pieces
from glassgpt.training.checkpoint import tensor_file
from glassgpt.training.checkpoint.tensor_file import (
    PackedTensors,
    PinnedBuffer,
    pack_tensors,
    write_packed,
)

DTYPES = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8,
)  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Tensor]:
    names = draw(st.lists(st.text(min_size=1, max_size=20), unique=True, max_size=8))
    names = [name for name in names if name != "__metadata__" and name.isprintable()]
    return {
        name: torch.randn(draw(st.lists(st.integers(0, 5), max_size=3))).to(draw(st.sampled_from(DTYPES)))
        for name in names
    }


def write(path: Path, by_name: dict[str, Tensor]) -> str:
    return write_packed(path, pack_tensors(by_name, torch.device("cpu")))


def read(path: Path) -> dict[str, Tensor]:
    return load_file(path) if path.stat().st_size else {}


@settings(max_examples=100, deadline=None)
@given(tensors())
def test_the_library_reads_what_was_written(by_name: dict[str, Tensor]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.safetensors"
        written = write(path, by_name)
        assert written == content_digest(path.read_bytes())
        back = read(path)
    assert back.keys() == by_name.keys()
    for name, tensor in by_name.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert torch.equal(back[name].view(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_a_tensor_that_is_not_contiguous(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    write(tmp_path / "file", {"turned": whole.t(), "part": whole[:, 1], "scalar": whole[0, 3]})
    back = load_file(tmp_path / "file")
    assert torch.equal(back["turned"], whole.t())
    assert torch.equal(back["part"], whole[:, 1])
    assert torch.equal(back["scalar"], torch.tensor(3.0))


def test_parameters_can_be_written_as_they_are(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    write(tmp_path / "file", dict(layer.named_parameters()))
    assert torch.equal(load_file(tmp_path / "file")["weight"], layer.weight)


def content_digest(content: bytes) -> str:
    return sha256_in_pieces(content)


def test_progress_and_odd_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is cut off, or that claims to be longer than the file."""
    monkeypatch.setattr(digests, "HASHED_PIECE_BYTES", 1000)
    path, read = tmp_path / "file", list[int]()
    for header, rest in ((0, 0), (56, 0), (56, 1), (56, 999), (56, 1000), (56, 1001), (56, 5000), (2**60, 9)):
        path.write_bytes(content := header.to_bytes(8, "little") + b"x" * (min(header, 99) + rest))
        ends = [*range(min(8 + header, len(content)), len(content), 1000), len(content)]
        pieces = [content[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        with path.open("rb") as file:
            digest = sha256_in_pieces(file, read.append)
        assert digest == content_digest(content) == combined(pieces)
        assert sum(read) == len(content)
        read.clear()
    assert content_digest(b"") == combined([b""])


def combined(pieces: list[bytes]) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()


def test_a_digest_is_the_digest_of_the_chunks_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_file, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(digests, "HASHED_PIECE_BYTES", 1000)
    written = write(tmp_path / "file", {"a": torch.randn(777)})
    content = (tmp_path / "file").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    chunks = [content[:header], content[header:][:1000], content[header:][1000:2000]]
    chunks += [content[header:][2000:3000], content[header:][3000:]]
    assert b"".join(chunks) == content
    assert written == content_digest(content) == combined(chunks)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200), st.integers(0), st.integers(1, 255))
def test_no_changed_byte_has_the_same_digest(content: bytes, place: int, change: int) -> None:
    content_digest(content)  # whatever it claims its header to be
    if content:
        place %= len(content)
        changed = content[:place] + bytes([content[place] ^ change]) + content[place + 1 :]
        assert content_digest(changed) != content_digest(content)
    assert content_digest(content + b"x") != content_digest(content)


class FewBuffers(PinnedBuffer):
    """As from a card: its chunks are overwritten as soon as allowed."""

    def __init__(self) -> None:
        self._memory = torch.empty(
            tensor_file._MAX_CHUNKS_IN_FLIGHT, tensor_file._CHUNK_BYTES, dtype=torch.uint8
        )

    def chunks(self, content: Tensor) -> Iterator[memoryview]:
        for number, chunk in enumerate(tensor_file._split(content.numpy().data)):
            pinned = self._memory[number % tensor_file._MAX_CHUNKS_IN_FLIGHT, : len(chunk)]
            pinned.copy_(torch.frombuffer(chunk, dtype=torch.uint8))
            yield pinned.numpy().data


@pytest.mark.parametrize("size", [0, 1, 999, 4000, 4001, 50_000])
def test_chunks_are_hashed_before_they_are_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(tensor_file, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(digests, "HASHED_PIECE_BYTES", 1000)
    monkeypatch.setattr(tensor_file, "_FLUSH_INTERVAL_BYTES", 5000)

    def slow_sha256(chunk: memoryview) -> bytes:
        time.sleep(0.002)
        return hashlib.sha256(chunk).digest()

    monkeypatch.setattr(tensor_file, "piece_sha256", slow_sha256)
    packed = PackedTensors(b"\0" * 8, torch.randint(0, 256, (size,), dtype=torch.uint8))
    written = write_packed(tmp_path / "file", packed, FewBuffers())
    content = (tmp_path / "file").read_bytes()
    assert content == packed.header + packed.content.numpy().tobytes()
    assert written == content_digest(content)


@pytest.mark.gpu
def test_from_a_card_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(digests, "HASHED_PIECE_BYTES", 1000)
    device = torch.device("cuda")
    pinned_buffer = tensor_file.PinnedBuffer(device)
    on_card = {"a": torch.randn(777, device=device), "b": torch.randn(3, 5, device=device).bfloat16()}
    before = {name: tensor.cpu() for name, tensor in on_card.items()}
    packed = pack_tensors(on_card, device)
    pinned_buffer.record_copy_event()
    on_card["a"].zero_()  # training goes on
    written = write_packed(tmp_path / "file", packed, pinned_buffer)
    assert written == content_digest((tmp_path / "file").read_bytes())
    back = load_file(tmp_path / "file")
    assert all(torch.equal(back[name], tensor) for name, tensor in before.items())
