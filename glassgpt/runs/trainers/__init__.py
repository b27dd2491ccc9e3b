"""The trainers whose logs are known, one file each.

A new one is a file here that ends with `TRAINER = Trainer(...)`, a line in `_ORDER`, and its test.
"""

from __future__ import annotations

from importlib import import_module

from glassgpt.runs.trainer import Trainer

# In the order in which a tie is decided; the one that reads anything is asked last.
_ORDER = (
    "nanogpt",
    "nanochat",
    "build_nanogpt",
    "llmc",
    "modded",
    "litgpt",
    "huggingface",
    "minimind",
    "glassgpt",
    "generic",
)

TRAINERS: tuple[Trainer, ...] = tuple(import_module(f"{__name__}.{name}").TRAINER for name in _ORDER)
BY_ID = {trainer.id: trainer for trainer in TRAINERS}
