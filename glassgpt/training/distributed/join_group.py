"""Which process group this process belongs to: one alone, or a rank, as torchrun's environment says."""

from __future__ import annotations

import os

from glassgpt.errors import UserError
from glassgpt.training.distributed.process_group import ProcessGroup

_STATED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # by torchrun


def join() -> ProcessGroup:
    """The team that this process was started for: by torchrun, `glass train --nproc`, or alone."""
    said = [name for name in _STATED if os.environ.get(name)]
    if "RANK" not in said and os.environ.get("WORLD_SIZE", "") in ("", "0", "1"):
        return ProcessGroup()
    missing = [name for name in _STATED if name not in said]
    if missing:
        raise UserError(
            f"the environment says that this is one of several processes, but not {', '.join(missing)}: "
            "start them with torchrun, or `glass train --nproc N`"
        )
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise UserError(
            f"the environment says RANK={rank} and WORLD_SIZE={size}: ranks count from 0 to one less"
        )
    from glassgpt.training.distributed.torch_group import TorchProcessGroup  # needs torch

    return TorchProcessGroup.from_environment(os.environ)
