"""Shards and --documents=apart on a card, with resident tokens or not, captured or not, as on a CPU."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import MakeConfig, choices, run_losses

from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.estimate import overheads
from glassgpt.training.session import train

pytestmark = pytest.mark.gpu


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    draw = random.Random(1)
    texts = [
        " ".join(draw.choices(["glass", "house", "door"], k=draw.choice([1, 5, 40]))) for _ in range(300)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    options = PrepareOptions(
        str(tmp_path / "a.jsonl"),
        tokenizer="bpe:280",
        val_fraction=0.1,
        shard_tokens=500,
        out_dir=str(tmp_path / "shards"),
    )
    prepare(options, lambda line: None, progress=False)
    return tmp_path / "shards"


@pytest.mark.parametrize("documents", ["joined", "apart"])
def test_a_card_learns_what_the_cpu_learns(
    tiny: MakeConfig, shards: Path, monkeypatch: pytest.MonkeyPatch, documents: str
) -> None:
    original = torch.set_float32_matmul_precision
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: original("highest"))
    settings: dict[str, Any] = {"data_dir": str(shards), "documents": documents, "dtype": "float32"}
    settings |= {"n_embd": 32, "gradient_accumulation_steps": 3, "kernels": "plain"}
    cpu = tiny("cpu", **settings)
    train(cpu)
    for graph in ("on", "off"):
        card = tiny(f"card-{graph}", **settings | {"device": "cuda", "graph": graph})
        train(card)
        assert choices(card.out_dir)["data"][0] == "on the card"
        assert run_losses(card.out_dir) == pytest.approx(run_losses(cpu.out_dir), abs=1e-3)
    monkeypatch.setattr(overheads, "MAX_DATA_SHARE_OF_CARD", 0.0)
    copied = tiny("copied", **settings | {"device": "cuda"})
    train(copied)
    assert choices(copied.out_dir)["data"][0] == "in memory"
    assert run_losses(copied.out_dir) == pytest.approx(run_losses(cpu.out_dir), abs=1e-3)
