"""What a loss means: the ladder of a text by characters, and when a run passes each of its rungs.

    python -m bench.ladder tinyshakespeare.txt
    python -m bench.ladder tinyshakespeare.txt hindi.txt arabic.txt --train shakespeare_char_cpu \\
        --interval 20 --picture docs/ladder.svg

The last tenth of the text is held out, as nanoGPT does. `--train` trains the preset on each text, evaluated
every `--interval` updates, which changes no update. The last line is one JSON document: of each text the loss
of each order in nats per character, and the update at which the run passed it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.picture import ladder_picture
from glassgpt.data.ngram_baselines import ngram_losses, uniform_loss
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.reading import read_run_log


def measure_ladder(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    characters, tokens = np.unique(np.array(list(text)), return_inverse=True)
    split, started = int(len(tokens) * 0.9), time.perf_counter()
    losses = ngram_losses(tokens[:split], tokens[split:], len(characters))
    in_order = (uniform_loss(len(characters)), *dict(sorted(losses.items())).values())
    seconds = time.perf_counter() - started
    return {
        "characters": len(tokens),
        "vocabulary": len(characters),
        "losses": [round(loss, 5) for loss in in_order],
        "seconds": round(seconds, 2),
    }


def train_on(path: Path, preset: str, interval: int) -> dict[str, Any]:
    """The validation curve of a run on this text, and where it passed each rung."""
    from glassgpt.cli import main

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where its data/ and runs/ are made
        try:
            words = ["prepare", str(path), "--tokenizer=char", "--out_dir=data/text"]
            assert main(words) == 0, "preparing the text failed"
            flags = [
                "--data_dir=data/text",
                "--out_dir=runs/one",
                f"--eval_interval={interval}",
                "--page=off",
            ]
            assert main(["train", preset, *flags]) == 0, "training failed"
            analysis = Analysis(read_run_log("runs/one"))
        finally:
            os.chdir(before)
    progress = analysis.ladder_progress
    assert progress is not None, "the run has no ladder"
    return {
        "passed_at": {order: one.iteration for order, one in progress.passed.items()},
        "curve": [[one.iteration, one.val_loss] for one in analysis.log.evals],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ladder", description=__doc__)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--train", default="", metavar="PRESET")
    parser.add_argument("--interval", type=int, default=50)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    found = {path.stem: measure_ladder(path) for path in options.texts}
    for path in options.texts if options.train else ():
        found[path.stem] |= train_on(path.resolve(), options.train, options.interval)
    if options.picture:
        options.picture.write_text(ladder_picture(found, options.train), encoding="utf-8")
    print(json.dumps({name: {key: row[key] for key in row if key != "curve"} for name, row in found.items()}))


if __name__ == "__main__":
    main()
