"""The benchmark of preparation, in small: both sides make the same tokens of the same parquet."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

import pytest

from bench.prepare import main


def test_both_sides_make_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("datasets", reason="nanoGPT's way needs it: pip install datasets")
    source = tmp_path / "texts.jsonl.xz"
    lines = [json.dumps({"text": f"Document {i} of glass " + "houses " * (i % 5)}) for i in range(12_000)]
    source.write_bytes(lzma.compress("\n".join(lines).encode()))
    sizes = ["--rounds=1", "--times=2", "--vocabulary=300", "--workers=1", f"--scratch={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["prepare", str(source), *sizes])
    main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["same_tokens"]
    assert found["ratio"] == pytest.approx(
        found["tokens_per_s"]["glassgpt"] / found["tokens_per_s"]["nanogpt"], rel=1e-6
    )
    assert found["text_bytes"] == sum(len(json.loads(line)["text"]) for line in lines)
    assert found["peak_bytes"]["glassgpt"] > 1e6
    assert list(tmp_path.iterdir()) == [source]
