"""GlassGPT: train a small GPT, and see through the run.

import glassgpt
run = glassgpt.training("quickstart", max_iters=100)
run = glassgpt.training(glassgpt.TrainConfig(dataset="pylib", n_layer=4, n_head=4, n_embd=128, max_iters=100))
"""

from __future__ import annotations

import importlib

from glassgpt.version import VERSION as __version__

TYPE_CHECKING = False  # typing's own takes longer to load than all that the command needs to hear Ctrl-C
if TYPE_CHECKING:
    from glassgpt.config import TrainConfig
    from glassgpt.errors import UserError
    from glassgpt.training.session import Run, resume, train

__all__ = ["Run", "TrainConfig", "UserError", "__version__", "resume", "train"]

_HOMES = {
    "Run": "train.session",
    "resume": "train.session",
    "TrainConfig": "config",
    "UserError": "errors",
}


def __getattr__(name: str) -> object:
    """Loaded when they are asked for: torch takes seconds to import."""
    if name == "train":
        return importlib.import_module("glassgpt.training")  # a module that can be called
    if name in _HOMES:
        return getattr(importlib.import_module(f"glassgpt.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'glassgpt' has no attribute {name!r}")
