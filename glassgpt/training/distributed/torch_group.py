"""A process group of several processes, which torchrun or `glass train --nproc` started: torch.distributed.

Before training the ranks agree through the launcher's key-value store, in JSON. That works before a backend
is initialised, and a rank that fails there does not leave the others hanging in a collective. While training
they exchange tensors: NCCL between cards, gloo between CPUs and for the few numbers that live on the host.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]
from torch.nn import Parameter

from glassgpt.config import Choice, TrainConfig
from glassgpt.errors import UserError, raise_if_any
from glassgpt.training.distributed.gradient_all_reduce import GradientAllReduce
from glassgpt.training.distributed.process_group import JsonValue, ProcessGroup, RankLost
from glassgpt.training.distributed.rank_watchdog import RankWatchdog
from glassgpt.training.interrupt import StopSignals, default_stop_signals

# Before and after training a rank may read or write gigabytes. One that dies is noticed at once all the same.
_STARTUP_TIMEOUT_S = 1800.0
_POLL_S = 0.02
_ERROR_COLLECTION_S = 1.0  # how long a rank that fails waits for the errors of the others
_RANK_LOSS_WAIT_S = 4.0  # how long to look for a lost rank that may have caused an error
_BACKENDS = {"cuda": "nccl", "cpu": "gloo"}


class TorchProcessGroup(ProcessGroup):
    """One rank of several."""

    def __init__(self, rank: int, world_size: int, local_rank: int, local_world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.local_rank, self.local_world_size = local_rank, local_world_size
        # Two connections to the same store: torch's blocks, ours never does.
        prefix = f"glass/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        timeout = timedelta(seconds=_STARTUP_TIMEOUT_S)
        with default_stop_signals():  # connecting waits for rank 0, which may never come
            self._store, self._torch_store = (
                PrefixStore(prefix, next(iter(rendezvous("env://", timeout=timeout)))[0]) for _ in range(2)
            )
        self._message_count = 0  # numbers the store's keys, so that all ranks mean the same message
        self._errors_are_shared = False  # the error that this rank ends with is known to the others
        self._watchdog = RankWatchdog(self._store, rank, world_size, _STARTUP_TIMEOUT_S)
        self._rank_timeout_s = 0.0  # while training
        self._device = torch.device("cpu")
        self._pending_stop_sync: tuple[dist.Work, Tensor] | None = None
        self._gradient_all_reduce = GradientAllReduce([], world_size)
        self._all_reduce_s = 0.0  # by the host's clock
        self._all_reduce_events: list[tuple[Any, Any]] = []  # CUDA events: start and end of each all-reduce

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> TorchProcessGroup:
        def number(name: str, default: int = 0) -> int:
            return int(environment.get(name) or default)

        group = cls(number("RANK"), number("WORLD_SIZE"), number("LOCAL_RANK"), number("LOCAL_WORLD_SIZE", 1))
        group.restart_count = number("TORCHELASTIC_RESTART_COUNT")
        run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
        # torchrun without --rdzv-id: then the launcher's pid, the parent of rank 0, identifies the launch.
        group.launch_id = run_id if run_id != "none" else f"{platform.node()}-{os.getppid()}"
        return group

    # --- before training: JSON values through the store ---

    @contextmanager
    def share_errors(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            if not self._errors_are_shared:
                self.store_set(f"errors/{self.rank}", error.problems)
                self._store.add("failed", 1)
                raise UserError(self._gather_errors()) from error
            raise
        except dist.DistError as error:  # usually the store's, which is gone with the launcher
            raise self.root_cause(error) from error

    def _gather_errors(self) -> list[str]:
        """The errors of all ranks, on rank 0. The other ranks print nothing and end a little later: the
        launcher ends all ranks when one ends, and rank 0 has to print first."""
        self._errors_are_shared = True
        deadline = time.monotonic() + _ERROR_COLLECTION_S
        keys = [f"errors/{rank}" for rank in range(self.world_size)]
        while time.monotonic() < deadline and not self._store.check(keys):
            time.sleep(_POLL_S)
        if not self.is_rank_zero:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._watchdog.close("")
            time.sleep(_ERROR_COLLECTION_S)
            return []
        ranks_by_problem: dict[str, list[int]] = {}
        for rank, key in enumerate(keys):
            for problem in json.loads(self._store.get(key)) if self._store.check([key]) else ():
                ranks_by_problem.setdefault(problem, []).append(rank)
        return [
            problem if 0 in ranks else f"rank {', '.join(map(str, ranks))}: {problem}"
            for problem, ranks in ranks_by_problem.items()
        ]

    def broadcast_from_rank_zero(self, make: Callable[[], JsonValue]) -> JsonValue:
        self._message_count += 1
        key = f"broadcast/{self._message_count}"
        if self.is_rank_zero:
            value = make()
            self.store_set(key, value)
            return value
        return self._wait_for_key(key)  # type: ignore[no-any-return]

    def run_rank_zero_first(self, work: Callable[[], None]) -> None:
        for turn in (self.is_rank_zero, self.local_rank == 0 and not self.is_rank_zero, self.local_rank > 0):
            if turn:
                work()
            self._store_barrier()

    def _store_barrier(self) -> None:
        """A barrier that needs no backend."""
        self.all_gather_object(True)

    def all_gather_object(self, own: JsonValue) -> list[JsonValue]:
        self._message_count += 1
        key = f"gather/{self._message_count}"
        self.store_set(f"{key}/{self.rank}", own)
        return [self._wait_for_key(f"{key}/{rank}") for rank in range(self.world_size)]

    def check_same_on_all_ranks(self, facts: Mapping[str, Any]) -> None:
        first, *others = self.all_gather_object(dict(facts))

        def compare() -> bool:
            mismatches = (describe_mismatches(first, other, rank) for rank, other in enumerate(others, 1))
            raise_if_any([problem for problems in mismatches for problem in problems])
            return True

        self.broadcast_from_rank_zero(compare)  # rank 0 raises, and the others with it

    def _wait_for_key(self, key: str) -> Any:
        """The value that another rank puts under this key. If a rank fails meanwhile, this one fails too."""
        with self._watchdog.waiting():
            while not self._store.check([key]):
                if self._store.add("failed", 0):
                    raise UserError(self._gather_errors())
                if self._watchdog.lost_message:
                    raise self._rank_lost_error()
                time.sleep(_POLL_S)
        return json.loads(self._store.get(key))

    def connect(self, device: torch.device, config: TrainConfig) -> list[Choice]:
        name, reason = choose_backend(config.backend, device.type)
        # Tensors on the host always use gloo, so that syncing stop signals does not wait for the card.
        backends = f"cpu:gloo,{device.type}:{name}" if device.type != "cpu" else name
        self._rank_timeout_s = config.rank_timeout
        self.extend_timeout()
        with self._watchdog.waiting():
            dist.init_process_group(
                backends,
                store=self._torch_store,
                rank=self.rank,
                world_size=self.world_size,
                # Longer than the watchdog's, which names the missing rank.
                timeout=timedelta(seconds=self._watchdog.timeout_s + 60),
            )
        self._device = device
        machines = -(-self.world_size // self.local_world_size)
        where = f" on {machines} machines" if machines > 1 else ""
        weights = "its part of the weights, gathered as needed" if config.shard else "all of the weights"
        return [
            Choice("ranks", self.world_size, f"processes{where}, as the launcher says; each holds {weights}"),
            Choice("backend", name, reason),
        ]

    def extend_timeout(self) -> None:
        self._watchdog.timeout_s = max(_STARTUP_TIMEOUT_S, self._rank_timeout_s)

    # --- while training: tensors ---

    def set_watchdog_callbacks(
        self, get_position: Callable[[], tuple[str, int]], record_loss: Callable[[str], None]
    ) -> None:
        self._watchdog.set_callbacks(get_position, record_loss)

    def waiting_for_ranks(self) -> AbstractContextManager[None]:
        return self._watchdog.waiting()

    def sync_stop_signals(self, signals: StopSignals) -> None:
        """An asynchronous all-reduce, started at one update and read at the next, so that no rank waits."""
        if self._pending_stop_sync is None:  # training begins once all ranks are here
            self.barrier()
            self._watchdog.timeout_s = self._rank_timeout_s
        else:
            work, requests = self._pending_stop_sync
            with self._watchdog.waiting():
                work.wait()
            signals.apply_requests(*requests.tolist())
        requests = torch.tensor(signals.take_local_requests(), dtype=torch.int64)
        self._pending_stop_sync = (dist.all_reduce(requests, dist.ReduceOp.MAX, async_op=True), requests)

    def prepare_all_reduce(self, parameters: Sequence[Parameter], fixed_addresses: bool) -> None:
        self._gradient_all_reduce = GradientAllReduce(parameters, self.world_size, fixed_addresses)

    def start_all_reduce_in_backward(self) -> None:
        self._gradient_all_reduce.start_in_backward()

    def all_reduce_gradients(self, loss: Tensor) -> None:
        start = self._timestamp()
        with self._watchdog.waiting():
            self._gradient_all_reduce.finish(loss)
        if self._device.type == "cuda":  # it runs asynchronously: its events are read later
            self._all_reduce_events.append((start, self._timestamp()))
        else:
            self._all_reduce_s += self._timestamp() - start

    def _timestamp(self) -> Any:
        """A CUDA event, or seconds of the host's clock."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def take_all_reduce_s(self) -> float:
        device_s: float = sum(start.elapsed_time(end) for start, end in self._all_reduce_events) / 1000
        seconds = self._all_reduce_s + device_s
        self._all_reduce_s, self._all_reduce_events = 0.0, []
        return seconds

    @contextmanager
    def without_all_reduce_timing(self) -> Iterator[None]:
        seconds, event_count = self._all_reduce_s, len(self._all_reduce_events)
        yield
        self._all_reduce_s = seconds
        del self._all_reduce_events[event_count:]

    def barrier(self) -> None:
        self.all_reduce_sum(np.zeros(1))

    def all_reduce_norm(self, own: Tensor) -> Tensor:
        square = own.double().square()
        with self._watchdog.waiting():
            dist.all_reduce(square)
        return square.sqrt().to(own.dtype)

    def all_reduce_sum(self, values: np.ndarray) -> np.ndarray:
        sums = torch.from_numpy(values.copy())
        with self._watchdog.waiting():
            dist.all_reduce(sums)
        return sums.numpy()

    def all_gather_rows(self, own: Sequence[float]) -> list[list[float]]:
        rows = np.zeros((self.world_size, len(own)))
        rows[self.rank] = own
        table: list[list[float]] = self.all_reduce_sum(rows).tolist()
        return table

    # --- between the threads that save checkpoints ---

    def store_set(self, key: str, value: Any) -> None:
        self._store.set(key, json.dumps(value))

    def store_get(self, key: str) -> Any:
        """Raises an OSError if a rank is lost: the save fails, as on a disk error."""
        while not self._store.check([key]):
            if self._watchdog.wait_for_loss(_POLL_S):
                raise OSError(f"{self._watchdog.lost_message}")
        return json.loads(self._store.get(key))

    # --- the end ---

    def root_cause(self, error: BaseException) -> BaseException:
        # torch raises a RuntimeError from a collective in which another rank is missing.
        may_be_a_lost_rank = isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError)
        if may_be_a_lost_rank and self._watchdog.wait_for_loss(_RANK_LOSS_WAIT_S):
            return self._rank_lost_error()
        return error

    def _rank_lost_error(self) -> RankLost:
        return RankLost(str(self._watchdog.lost_message), self._watchdog.claim_report())

    def shut_down(self, error: BaseException | None = None) -> None:
        """A rank that ends because of another rank's error reports none: the others must not name it."""
        try:
            if error is not None:
                is_own_error = not (isinstance(error, RankLost) or self._errors_are_shared)
                message = f"{type(error).__name__}: {error}".replace("\n", " ")[:500]
                self._watchdog.close(message if is_own_error else "")
                return
            self.extend_timeout()
            if self._pending_stop_sync is not None:
                self._pending_stop_sync[0].wait()
            # The launcher ends all ranks when one ends, and rank 0 has most to finish.
            self._store_barrier()
            self._watchdog.close("")
            if dist.is_initialized():
                dist.destroy_process_group()
            # Without a launcher rank 0 hosts the store, which goes with it: it leaves last.
            if self.is_rank_zero:
                for rank in range(1, self.world_size):
                    self._wait_for_key(f"left/{rank}")
            else:
                self.store_set(f"left/{self.rank}", True)
        except dist.DistError as failure:  # the launcher may be gone, though all is done
            raise self.root_cause(failure) from failure


def choose_backend(requested: str, device_type: str) -> tuple[str, str]:
    """The backend for tensors on a device, and why."""
    if device_type not in _BACKENDS:
        raise UserError(f"several processes cannot share --device={device_type}; try --device=cpu")
    default = _BACKENDS[device_type]
    if requested and requested not in ("nccl", "gloo"):
        raise UserError(f"--backend={requested} is not one of nccl, gloo")
    if requested == "nccl" and device_type == "cpu":
        return default, "nccl was asked for, but it is for CUDA cards"
    if requested:
        return requested, "asked for"
    available = dist.is_nccl_available() if default == "nccl" else dist.is_gloo_available()
    if not available:
        raise UserError(
            f"this build of PyTorch has no {default}, the backend for several {device_type} ranks"
        )
    return default, "between CUDA cards" if default == "nccl" else "between CPUs"


def describe_mismatches(
    rank_zero_facts: Mapping[str, Any], rank_facts: Mapping[str, Any], rank: int
) -> list[str]:
    """A sentence for each fact in which `rank` differs from rank 0."""
    names = [*rank_zero_facts, *(name for name in rank_facts if name not in rank_zero_facts)]
    return [
        f"rank {rank} has {name}={rank_facts.get(name)}, rank 0 has {name}={rank_zero_facts.get(name)}: "
        "start all of them with the same command, on the same data and versions"
        for name in names
        if rank_zero_facts.get(name) != rank_facts.get(name)
    ]
