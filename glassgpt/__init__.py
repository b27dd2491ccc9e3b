"""GlassGPT: train a small GPT, and see through the run.

import glassgpt
run = glassgpt.train("quickstart", max_iters=100)
run = glassgpt.train(glassgpt.TrainConfig(dataset="pylib", n_layer=4, n_head=4, n_embd=128, max_iters=100))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.version import VERSION as __version__

if TYPE_CHECKING:
    from glassgpt.train.session import Run, resume, train

__all__ = ["Run", "TrainConfig", "UserError", "__version__", "resume", "train"]


def __getattr__(name: str) -> Any:
    """These need torch, which takes seconds to import; so only when they are asked for."""
    if name == "train":
        return importlib.import_module("glassgpt.train")  # a module that can be called
    if name in ("Run", "resume"):
        return getattr(importlib.import_module("glassgpt.train.session"), name)
    raise AttributeError(f"module 'glassgpt' has no attribute {name!r}")
