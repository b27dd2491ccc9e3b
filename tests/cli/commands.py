"""`glass` as people call it: logs and runs to read, and the command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from glassgpt.cli import main
from glassgpt.record import journal
from glassgpt.record.journal import Record

Capture = pytest.CaptureFixture[str]
GLASS = (sys.executable, "-c", "from glassgpt.cli import run; run()")
LOCALE = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
# What a hostile file may try: a title, a colour, markup of rich's, another direction, a C1 escape.
HOSTILE_TEXT = (
    "\x1b]0;owned\x07\x1b[31m[red]x[/red][link=http://evil]y\u202ez\u061c\u200b\xad\U000e0041\x9b31m\x85<b>"
)


def nanogpt_log(last: int = 600, first: int = 0, factor: float = 1.0) -> str:
    """A run of nanoGPT's: a line every 10 iterations, an evaluation and a checkpoint every 250."""
    lines = ["tokens per iteration will be: 16,384", "number of parameters: 10.65M"]
    for at in range(first, last + 1, 10):
        loss, ms = factor * 4.2 / (1 + at / 300), 168.0 + at % 7 / 10
        if at % 250 == 0:
            lines.append(f"step {at}: train loss {loss:.4f}, val loss {loss + 0.05:.4f}")
            lines += ["saving checkpoint to out"] if at else []
            ms = 5985.0
        ms = 12543.0 if at == first else ms
        mfu = -100.0 if at < first + 50 else 2.21
        lines.append(f"iter {at}: loss {loss + at % 3 / 100:.4f}, time {ms:.2f}ms, mfu {mfu:.2f}%")
    return "\n".join(lines) + "\n"


# --- runs of our own ---


def record(kind: str, iteration: int, **fields: Any) -> Record:
    return {"kind": kind, "time": 1.0e9 + iteration, "process": 0, "iter": iteration, **fields}


def run_record(**changes: Any) -> Record:
    fields: Record = {
        "out_dir": "runs/mine",
        "config": {"max_iters": 100, "dataset": "mine", "eval_interval": 50, "learning_rate": 1e-3},
        "choices": [{"name": "device", "value": "cpu", "reason": "no GPU found"}],
        "model": {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "parameters": 10_745_088},
        "peak": {"value": 96e9},
        "data": {"name": "mine", "tokenizer": "char"},
        "machine": {"torch": "2.13.0", "device": {"name": "RTX 4090", "memory": 24 << 30}},
    }
    return record("run", 0, **fields | changes)


def eval_records(at: int, loss: float) -> list[Record]:
    fields = {"stderr": 0.01, "tokens": 32_768, "ms": 400.0}
    return [
        record("eval", at, split="train", loss=loss - 0.05, **fields),
        record("eval", at, split="val", loss=loss, **fields),
    ]


def step_record(at: int, loss: float) -> Record:
    phases = {"train": 380.0, "log": 1.0}
    speed = {"step_ms": 38.0, "tokens_per_s": 431_000.0, "mfu": 12.3}
    return record("step", at, loss=loss, lr=1e-3, grad_norm=0.75, phases=phases, **speed)


def finished_run() -> list[Record]:
    ledger = {"startup": 1.0, "train": 60.0, "eval": 1.2, "checkpoint": 0.1, "log": 0.2, "other": 0.1}
    return [
        run_record(),
        *eval_records(0, 4.2),
        *(step_record(at, 4.0 - at / 50) for at in range(10, 51, 10)),
        *eval_records(50, 3.0),
        record("checkpoint", 50, bytes=1000, blocking_ms=0.2, background_ms=10.0, best=True),
        *(step_record(at, 4.0 - at / 50) for at in range(60, 101, 10)),
        *eval_records(100, 2.1),
        record("checkpoint", 100, bytes=1000, blocking_ms=0.2, background_ms=10.0, best=True),
        record("end", 100, reason="finished", exit_code=0, ledger=ledger, wall_s=sum(ledger.values())),
    ]


def write_run(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / journal.FILE_NAME).write_bytes(b"".join(map(journal.encode_line, records)))
    return folder


def hostile_run() -> list[Record]:
    """Wherever a text is, it is hostile."""
    machine = {
        "torch": HOSTILE_TEXT,
        "device": {"name": f"RTX 4090{HOSTILE_TEXT}", "memory": 24 << 30},
        HOSTILE_TEXT: HOSTILE_TEXT,
    }
    config = {**run_record()["config"], "dataset": HOSTILE_TEXT, HOSTILE_TEXT: HOSTILE_TEXT}
    choices = [{"name": HOSTILE_TEXT, "value": HOSTILE_TEXT, "reason": HOSTILE_TEXT}]
    texts = dict.fromkeys(("id", "title", "evidence", "explanation", "advice"), HOSTILE_TEXT)
    records = finished_run()
    records[0] = run_record(
        machine=machine,
        config=config,
        choices=choices,
        data={"name": HOSTILE_TEXT, "tokenizer": HOSTILE_TEXT},
    )
    records.insert(4, record("finding", 10, severity="warning", **texts))
    records.insert(5, record("finding", 10, severity=HOSTILE_TEXT))
    records[-1] |= {
        "reason": "crashed",
        "error": f"CUDA out of memory. Tried to allocate 2.00 GiB{HOSTILE_TEXT}",
    }
    return records


def control_characters(text: str, allowed: str = "\n") -> set[str]:
    """Characters that could move a cursor, hide or reorder something."""
    bad = {character for character in text if unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs")}
    return bad - set(allowed)


# --- the command ---


def environment(**changes: str) -> dict[str, str]:
    """Ours, in no particular language."""
    inherited = {name: value for name, value in os.environ.items() if name not in LOCALE}
    return {**inherited, "PYTHONUTF8": "0", "LANG": "C.UTF-8", **changes}


def glass(
    *arguments: str | bytes, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """In a process of its own, in the current folder."""
    return subprocess.run(
        [*GLASS, *arguments], input=stdin, capture_output=True, timeout=60, env=env or environment()
    )


def start_glass(*arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*GLASS, *arguments], env=environment(), stderr=subprocess.PIPE, **streams)


# --- the command in this process ---


def chdir_with_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the folder, with a log in it, in English."""
    monkeypatch.chdir(folder)
    for name in LOCALE:
        monkeypatch.delenv(name, raising=False)
    Path("n.log").write_text(nanogpt_log())
    return folder


def error_lines(capsys: Capture, *arguments: str) -> list[str]:
    """The problems printed, and nothing else."""
    capsys.readouterr()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines
    assert all(line.startswith("error: ") for line in lines)
    return [line.removeprefix("error: ") for line in lines]


def stdout_of(capsys: Capture, *arguments: str) -> str:
    capsys.readouterr()
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def parse_strict_json(text: str) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise ValueError(word)

    document = json.loads(text, parse_constant=refuse)
    assert isinstance(document, dict)
    return document
