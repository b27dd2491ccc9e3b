"""The process group: its interface, and the single-process implementation, where every collective is a no-op.

The training loop calls the collectives here wherever several processes have to agree, exchange tensors or
take turns. So there is one loop, which never asks whether it is alone. torch_group.py implements the same
interface for several processes, with torch.distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from glassgpt.config import Choice, TrainConfig

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
    from torch.nn import Parameter

    from glassgpt.training.interrupt import StopSignals

JsonValue = TypeVar("JsonValue")


class RankLost(Exception):
    """Another rank died or hangs. The message names it and what it was doing."""

    def __init__(self, message: str, should_report: bool = True) -> None:
        super().__init__(message)
        self.should_report = should_report  # True on one of the ranks that notice, so that it is printed once


class ProcessGroup:
    """A group of one process."""

    rank = 0
    world_size = 1
    local_rank = 0  # on its machine
    local_world_size = 1
    restart_count = 0  # how often the launcher has restarted the group
    launch_id = ""  # identifies the launch; the same after every restart. Empty: no launcher

    @property
    def is_rank_zero(self) -> bool:
        """Rank 0 writes journal, console and checkpoints."""
        return self.rank == 0

    # --- before training: JSON values through the launcher's store ---

    @contextmanager
    def share_errors(self) -> Iterator[None]:
        """A UserError that one rank raises inside ends all ranks, and is printed once."""
        yield

    def broadcast_from_rank_zero(self, make: Callable[[], JsonValue]) -> JsonValue:
        """What `make` returns on rank 0; the other ranks do not call it."""
        return make()

    def run_rank_zero_first(self, work: Callable[[], None]) -> None:
        """For work that makes files: rank 0, then one rank on every other machine, then all others."""
        work()

    def check_same_on_all_ranks(self, facts: Mapping[str, Any]) -> None:
        """Raises a UserError that names the facts in which ranks differ."""

    def all_gather_object(self, own: JsonValue) -> list[JsonValue]:
        """The value of each rank, by rank."""
        return [own]

    def connect(self, device: torch.device, config: TrainConfig) -> list[Choice]:
        """Initialises the backend. Collectives on tensors work from here on."""
        if config.backend:
            return [Choice("backend", config.backend, "not used: this run is one process", notable=True)]
        return []

    # --- while training: tensors ---

    def set_watchdog_callbacks(
        self, get_position: Callable[[], tuple[str, int]], record_loss: Callable[[str], None]
    ) -> None:
        """`get_position`: phase and updates done, which the others print if this rank is lost.
        `record_loss`: writes to the journal that a rank was lost."""

    def waiting_for_ranks(self) -> AbstractContextManager[None]:
        """Around code that waits for other ranks without calling a method of this class."""
        return nullcontext()

    def extend_timeout(self) -> None:
        """Training is over: rank 0 may have much to write while the others wait."""

    def sync_stop_signals(self, signals: StopSignals) -> None:
        """A stop request to any rank stops all ranks, at the same update."""

    def prepare_all_reduce(self, parameters: Sequence[Parameter], fixed_addresses: bool) -> None:
        """Names the parameters whose gradients `all_reduce_gradients` averages. `fixed_addresses`: a CUDA
        graph needs these gradients where they are."""

    def start_all_reduce_in_backward(self) -> None:
        """The next backward pass completes the gradients: they are sent as soon as they are computed."""

    def all_reduce_gradients(self, loss: Tensor) -> None:
        """Replaces the gradients and `loss` by their means over the ranks."""

    def take_all_reduce_s(self) -> float:
        """Seconds in `all_reduce_gradients` since the last call: without what overlapped with a backward
        pass. On a GPU, call it after a synchronize only."""
        return 0.0

    def without_all_reduce_timing(self) -> AbstractContextManager[None]:
        """All-reduces inside do not count in `take_all_reduce_s`."""
        return nullcontext()

    def barrier(self) -> None:
        """Waits for all ranks. Put it after work that only one rank has, so that the others wait here and the
        wait is not counted as part of the next all-reduce."""

    def all_reduce_norm(self, own: Tensor) -> Tensor:
        """The norm of a sharded vector, from the norm of each rank's shard."""
        return own

    def all_reduce_sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over the ranks."""
        return values

    def all_gather_rows(self, own: Sequence[float]) -> list[list[float]]:
        """The row of each rank, by rank."""
        return [list(own)]

    # --- between the threads that save checkpoints ---

    def store_set(self, key: str, value: Any) -> None:
        """Puts a JSON value into the launcher's store, for `store_get` on another rank."""

    def store_get(self, key: str) -> Any:
        """The value that another rank puts under this key; waits for it."""
        raise AssertionError("a group of one process has no other rank to wait for")

    # --- the end ---

    def root_cause(self, error: BaseException) -> BaseException:
        """The error itself, or RankLost if the loss of another rank caused it."""
        return error

    def shut_down(self, error: BaseException | None = None) -> None:
        """Leaves the group; the other ranks learn of the error."""


ALONE = ProcessGroup()
