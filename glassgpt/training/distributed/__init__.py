"""Several processes training one model: the process group, its watchdog, sharded weights (FSDP2).

group = join()      # in every process that torchrun or `glass train --nproc N` started; also in a single one

`join` is here because process_group.py cannot import torch_group.py, which imports it.
"""

from __future__ import annotations

import os

from glassgpt.errors import UserError
from glassgpt.training.distributed.process_group import ProcessGroup

_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def join() -> ProcessGroup:
    """The process group that torchrun's environment variables name; without them, a group of one."""
    missing = [name for name in _TORCHRUN_VARIABLES if not os.environ.get(name)]
    if "RANK" in missing and os.environ.get("WORLD_SIZE", "") in ("", "0", "1"):
        return ProcessGroup()
    if missing:
        raise UserError(
            f"the environment says that this is one of several processes, but lacks {', '.join(missing)}: "
            "start them with torchrun, or `glass train --nproc N`"
        )
    rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not (rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size)):
        raise UserError(
            f"the environment has RANK={rank} and WORLD_SIZE={world_size}: ranks count from 0 to "
            "WORLD_SIZE - 1"
        )
    from glassgpt.training.distributed.torch_group import TorchProcessGroup  # imports torch

    return TorchProcessGroup.from_environment(os.environ)
