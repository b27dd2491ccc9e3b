"""Parameters that are spread over the processes of a team, by FSDP2: each holds some rows of each.

A parameter that is not spread is its own part, and whole. So nobody who asks here needs to know.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glassgpt.model.gpt import GPT


def shard(model: GPT, device: torch.device, ranks: int) -> None:
    """Spreads the model: block by block, so that one block at a time is whole while computing."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (ranks,))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def is_dtensor(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")  # which plain tensors do not have; their class is slow to import


def local_shard(tensor: Tensor) -> Tensor:
    """The rows that this process holds."""
    return tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def gather_full_tensor(part: Tensor, like: Tensor) -> Tensor:
    """The whole of what every process has a part of, cut as `like` is. All processes have to ask."""
    if not is_dtensor(like):
        return part
    from torch.distributed.tensor import DTensor

    spread: Any = like
    whole: Tensor = DTensor.from_local(
        part,
        spread.device_mesh,
        spread.placements,
        run_check=False,
        shape=spread.shape,
        stride=spread.stride(),
    ).full_tensor()
    return whole


def shard_like(whole: Tensor, like: Tensor) -> Tensor:
    """Spread as `like` is; every process has the whole already."""
    if not is_dtensor(like):
        return whole
    from torch.distributed.tensor import distribute_tensor

    spread: Any = like
    # Nobody sends anything: all have read the same file, or computed the same.
    return distribute_tensor(whole.to(like.device), spread.device_mesh, spread.placements, src_data_rank=None)


def rows_of_rank(rank: int, ranks: int, rows: int) -> tuple[int, int]:
    """From where to where: as many for each, less for the last, none if there are few."""
    most = -(-rows // ranks)
    return min(rank * most, rows), min((rank + 1) * most, rows)
