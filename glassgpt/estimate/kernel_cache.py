"""Whether our GPU kernels were built on this machine before. No torch.

Triton keeps what it built in a folder of its own. A run that built our kernels leaves a marker beside them,
named after all that they are specialised on; whoever empties Triton's cache removes the marker too.
"""

from __future__ import annotations

import hashlib
import json
import os
from importlib import metadata, resources
from pathlib import Path

from glassgpt.config import TrainConfig


def kernel_cache_marker(
    config: TrainConfig, card: str, dtype: str, vocab_size: int, micro_tokens: int
) -> Path:
    """`card`: its name; `micro_tokens`: of a micro-batch. Triton specialises on multiples of 16."""
    source = hashlib.sha256((resources.files("glassgpt.model") / "kernels.py").read_bytes()).hexdigest()
    versions = [_version(package) for package in ("torch", "triton")]
    shape = (config.n_embd, config.n_head, config.arch, config.bias, config.activation, config.fp8)
    key = [card, dtype, vocab_size, config.block_size % 16, micro_tokens % 16, *shape, *versions, source]
    return _triton_cache() / f"glassgpt-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # ROCm's and Windows' Triton have other names, and follow torch's
        return None


def _triton_cache() -> Path:
    """As Triton itself looks for it."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    return Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
