"""Runs of three updates on a text in several scripts, to write with or to hand over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.training.session import train

LINE = "glass, कांच का घर, بيت من زجاج 🦊🐕\n"
CONTEXT = 12


def prepare_dataset(
    folder: Path, name: str, tokenizer: str = "auto", text: str = LINE * 60, **options: Any
) -> Path:
    """A dataset at data/NAME."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    out = folder / "data" / name
    request = PrepareOptions(str(folder / f"{name}.txt"), tokenizer=tokenizer, out_dir=str(out), **options)
    prepare(request, print_line=lambda line: None, progress=False)
    return out


def train_run(out_dir: Path, data_dir: Path, **changes: Any) -> Path:
    settings: dict[str, Any] = {
        "out_dir": str(out_dir),
        "data_dir": str(data_dir),
        "n_layer": 1,
        "n_head": 2,
        "n_embd": 16,
        "block_size": CONTEXT,
        "batch_size": 4,
        "learning_rate": 0.05,
        "warmup_iters": 0,
        "max_iters": 3,
        "eval_interval": 1,
        "eval_tokens": 48,
        "keep_checkpoints": 9,
        "device": "cpu",
        "compile": "off",
        "probe_seconds": 0.0,
    }
    return train(TrainConfig(**settings | changes)).out_dir
