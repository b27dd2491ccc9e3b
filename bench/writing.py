"""Generation: sampling.py, run as it is, its JSON line turned into rows."""

from __future__ import annotations

import json
import sys
from typing import Any

from bench.glass import ROOT
from bench.ground import Ground
from bench.results import Result
from bench.watch import environment, watch


def sampling(ground: Ground) -> list[Result]:
    """Writing 500 tokens with GPT-2 124M, one text and eight at a time."""
    flags = {
        "nanogpt": ground.nanogpt.place,
        "device": ground.kind,
        "rounds": ground.options.rounds,
        "tokens": ground.options.updates or 500,
    }
    command = [sys.executable, str(ROOT / "bench" / "sampling.py")]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    watched = watch(command, ROOT, environment(ground.fresh("caches")))
    return read_sampling(ground, json.loads(watched.lines[-1].text))


def read_sampling(ground: Ground, document: dict[str, Any]) -> list[Result]:
    return [
        ground.result(
            f"sampling-{batch}",
            "tokens/s",
            nanogpt=found["rounds"]["nanogpt"],
            glassgpt=found["rounds"]["glassgpt"],
            values=found["ratios"],
            details={
                "tokens": document["tokens"],
                "dtype": document["dtype"],
                "later_texts": found["later_texts"],
                "later_ratios": found["later_ratios"],
            },
        )
        for batch, found in document["batches"].items()
    ]
