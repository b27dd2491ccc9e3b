"""Parameters sharded over the ranks by FSDP2: each rank holds some rows of each parameter.

Everything here also takes plain tensors: a tensor that is not sharded is its own local shard and its own full
tensor. So callers need not ask whether the run is sharded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glassgpt.model.gpt import GPT
from glassgpt.model.weights import build_model


def shard(model: GPT, device: torch.device, world_size: int) -> None:
    """Shards the model block by block, so that only one block at a time is gathered while computing."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world_size,))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def is_dtensor(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")  # isinstance would need DTensor, whose import is slow


def local_shard(tensor: Tensor) -> Tensor:
    """The rows that this rank holds."""
    return tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def gather_full_tensor(local: Tensor, like: Tensor) -> Tensor:
    """The full tensor, from a local shard on every rank; sharded as `like` is. A collective."""
    if not is_dtensor(like):
        return local
    from torch.distributed.tensor import DTensor

    dtensor: Any = like
    full: Tensor = DTensor.from_local(
        local,
        dtensor.device_mesh,
        dtensor.placements,
        run_check=False,
        shape=dtensor.shape,
        stride=dtensor.stride(),
    ).full_tensor()
    return full


def gather_full_model(model: GPT) -> GPT:
    """A copy on the CPU of a sharded model. A collective."""
    weights = {
        name: gather_full_tensor(local_shard(tensor), tensor).cpu()
        for name, tensor in model.state_dict().items()
    }
    return build_model(model.config, weights, "the run")


def shard_like(full: Tensor, like: Tensor) -> Tensor:
    """Shards a tensor as `like` is sharded. Every rank has the full tensor already."""
    if not is_dtensor(like):
        return full
    from torch.distributed.tensor import distribute_tensor

    dtensor: Any = like
    # src_data_rank=None: no broadcast. All ranks have read the same file, or computed the same values.
    return distribute_tensor(
        full.to(like.device), dtensor.device_mesh, dtensor.placements, src_data_rank=None
    )


def rows_of_rank(rank: int, world_size: int, rows: int) -> tuple[int, int]:
    """First row and end of a rank's shard, as torch.chunk cuts: later ranks may get fewer rows, or none."""
    rows_per_rank = -(-rows // world_size)
    return min(rank * rows_per_rank, rows), min((rank + 1) * rows_per_rank, rows)
