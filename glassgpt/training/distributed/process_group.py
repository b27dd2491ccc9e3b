"""The team: the processes that train one run together. Here it is one, which agrees with itself.

The loop and what it needs ask the team wherever several processes would have to agree, exchange or take
turns. So there is one loop, and it never asks whether it is alone. ranks.py has the team of several.
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

    from glassgpt.training.interrupt import StopSignals

Plain = TypeVar("Plain")  # what JSON can say


class RankLost(Exception):
    """Another process of the team died or got stuck; says which, and in what."""

    def __init__(self, text: str, is_mine_to_say: bool = True) -> None:
        super().__init__(text)
        self.should_report = is_mine_to_say  # of all processes that notice, one says it


class ProcessGroup:
    """One process."""

    rank = 0
    world_size = 1
    local_rank = 0  # on its machine
    local_world_size = 1
    restart_count = 0  # how often the launcher has started the team anew
    launch_id = ""  # names what the launcher was asked to do; the same at every attempt

    @property
    def is_rank_zero(self) -> bool:
        """The one that writes: journal, console, checkpoints."""
        return self.rank == 0

    # --- before training ---

    @contextmanager
    def share_errors(self) -> Iterator[None]:
        """A mistake that one process finds inside ends all of them, and is said once."""
        yield

    def broadcast_from_rank_zero(self, make: Callable[[], Plain]) -> Plain:
        """What the first process makes; the others wait for it."""
        return make()

    def run_rank_zero_first(self, work: Callable[[], None]) -> None:
        """For what makes files: the first process, then one on every other machine, then all others."""
        work()

    def check_same_on_all_ranks(self, facts: Mapping[str, Any]) -> None:
        """Complains if processes differ in any of these."""

    def connect(self, device: torch.device, config: TrainConfig) -> list[Choice]:
        """From here on tensors can be exchanged."""
        if config.backend:
            return [Choice("backend", config.backend, "not used: this run is one process")]
        return []

    # --- while training ---

    def set_watchdog_callbacks(
        self, where: Callable[[], tuple[str, int]], record_loss: Callable[[str], None]
    ) -> None:
        """`where`: phase and updates done, for others to name. `record_loss`: notes that one was lost."""

    def waiting_for_ranks(self) -> AbstractContextManager[None]:
        """Around what waits for the others without asking here."""
        return nullcontext()

    def extend_timeout(self) -> None:
        """Training is over: from here on one may have much to write while the others wait."""

    def sync_stop_signals(self, stop: StopSignals) -> None:
        """What any process was told, all act on, at the same update."""

    def all_reduce_mean(self, tensors: Sequence[Tensor]) -> None:
        """Each becomes its mean over the processes."""

    def take_all_reduce_s(self) -> float:
        """Seconds that averaging took since last asked. On a card: only after a synchronize."""
        return 0.0

    def without_all_reduce_timing(self) -> AbstractContextManager[None]:
        """What is averaged inside does not enter `exchanged_s`."""
        return nullcontext()

    def barrier(self) -> None:
        """Nobody goes on before everybody is here: work that only one of them has is waited for where it is
        done, and not where results are exchanged next."""

    def all_reduce_norm(self, own: Tensor) -> Tensor:
        """The norm of what is spread over the processes, of which `own` is the norm of this one's part."""
        return own

    def all_gather_object(self, own: Plain) -> list[Plain]:
        """What each process has to say, by rank."""
        return [own]

    def all_reduce_sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over the processes."""
        return values

    def all_gather_rows(self, own: Sequence[float]) -> list[list[float]]:
        """Everybody's row."""
        return [list(own)]

    # --- between threads that save ---

    def store_set(self, name: str, value: Any) -> None:
        """For `collect` on another process."""

    def store_get(self, name: str) -> Any:
        """What was posted; waits for it."""
        raise AssertionError("nobody else is there to post anything")

    # --- the end ---

    def root_cause(self, error: BaseException) -> BaseException:
        """The error, or the loss of another process if that is what it comes from."""
        return error

    def shut_down(self, error: BaseException | None = None) -> None:
        """Goodbye to the others, who are told of the error."""
