"""The trainers whose logs can be read, one file each.

To add one: a file here that ends with `TRAINER = Trainer(...)`, a line in `_ORDER`, and a test.
"""

from __future__ import annotations

from importlib import import_module

from glassgpt.runs.trainer import Trainer

# Of two that match as many lines, the first wins; the one that reads any log comes last.
_ORDER = (
    "nanogpt",
    "autoresearch",
    "nanochat",
    "torchtune",
    "build_nanogpt",
    "llmc",
    "modded",
    "litgpt",
    "fairseq",
    "huggingface",
    "llamafactory",
    "ms_swift",
    "minimind",
    "torchtitan",
    "megatron",
    "olmo",
    "composer",
    "verl",
    "mlx_lm",
    "marian",
    "keras",
    "lightning",
    "glassgpt",
    "generic",
)

TRAINERS: tuple[Trainer, ...] = tuple(import_module(f"{__name__}.{name}").TRAINER for name in _ORDER)
BY_ID = {trainer.id: trainer for trainer in TRAINERS}
