"""Runs of three updates with every kind of tokenizer, to hand over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.data.prepare import PrepareOptions, prepare
from glassgpt.data.tokenizers import train_bpe
from glassgpt.train.session import train

LINE = "glass, कांच का घर, بيت من زجاج 🦊🐕 don't  you'll\t see\n"
TEXT = LINE * 60
TOKENIZERS = ("char", "byte", "bpe:300", "gpt2")
CONTEXT = 12


def prepared(folder: Path, tokenizer: str, text: str = TEXT) -> Path:
    name = tokenizer.partition(":")[0]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    files = ""
    if tokenizer == "gpt2":
        files = str(folder / "table")
        Path(files).mkdir()
        for file, content in train_bpe([text], 290).files.items():
            (Path(files) / file).write_bytes(content)
    request = PrepareOptions(
        str(folder / "text.txt"),
        tokenizer=tokenizer,
        tokenizer_files=files,
        out_dir=str(folder / "data" / name),
    )
    prepare(request, say=lambda line: None, progress=False)
    return folder / "data" / name


def trained(out_dir: Path, data_dir: Path, **changes: Any) -> Path:
    settings: dict[str, Any] = {
        "out_dir": str(out_dir),
        "data_dir": str(data_dir),
        "dataset": data_dir.name,
        "n_layer": 2,
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
        "dtype": "float32",
        "compile": "off",
        "probe_seconds": 0.0,
    }
    return train(TrainConfig(**settings | changes)).out_dir
