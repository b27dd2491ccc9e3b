"""Training: the loop, and what it needs at hand.

The room has the name of what it does, and `glassgpt.training(config)` is how it is done from Python. So the
module itself can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from glassgpt.training.session import train  # needs torch, which takes seconds to import

        return train(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
