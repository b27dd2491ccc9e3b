"""GlassGPT: train a small GPT, and see through the run.

import glassgpt
run = glassgpt.train("quickstart", max_iters=100)
run = glassgpt.train(glassgpt.TrainConfig(dataset="pylib", n_layer=4, n_head=4, n_embd=128, max_iters=100))
"""

from __future__ import annotations

from glassgpt.api import read_journal, resume, train
from glassgpt.version import VERSION as __version__

TYPE_CHECKING = False  # see api.py
if TYPE_CHECKING:
    from glassgpt.config import TrainConfig
    from glassgpt.errors import UserError
    from glassgpt.training.session import Run

__all__ = ["Run", "TrainConfig", "UserError", "__version__", "read_journal", "resume", "train"]

_LAZY = {"Run": "glassgpt.training.session", "TrainConfig": "glassgpt.config", "UserError": "glassgpt.errors"}


def __getattr__(name: str) -> object:
    """Imported on first use: torch takes seconds to import, and `glass --help` needs none of these."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'glassgpt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
