"""The ladder of a text by characters, split as nanoGPT does: the last tenth is held out.

    python -m bench.ladder tinyshakespeare.txt

The last line is one JSON document: the loss of each order, in nats per character.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from glassgpt.data.ngram_baselines import ngram_losses, uniform_loss


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ladder", description=__doc__)
    parser.add_argument("text", type=Path)
    text = parser.parse_args().text.read_text(encoding="utf-8")
    characters, tokens = np.unique(np.array(list(text)), return_inverse=True)
    split, started = int(len(tokens) * 0.9), time.perf_counter()
    losses = ngram_losses(tokens[:split], tokens[split:], len(characters))
    rounded = [
        round(loss, 5) for loss in (uniform_loss(len(characters)), *dict(sorted(losses.items())).values())
    ]
    print(json.dumps({"losses": rounded, "seconds": round(time.perf_counter() - started, 2)}))


if __name__ == "__main__":
    main()
