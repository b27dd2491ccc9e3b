"""A team of several processes, by torch.distributed: whoever started them is torchrun, or does as it does.

Before training they agree through the launcher's store, in words: that works before anything is connected,
and a process that fails there takes nobody with it into a hang. Training then exchanges tensors: NCCL between
cards, gloo between CPUs and for the few numbers that the hosts agree on.

Gradients are averaged in pieces of a fixed layout, once per update. DistributedDataParallel would overlap
that with the last micro-batch, but it lays its pieces out anew after the first update, so that a resumed run
would add in another order; its hooks cannot be in a recorded micro-step that serves all of them; and what it
exchanges cannot be told from what it computes.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from glassgpt.config import Choice, TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate.memory import ALL_REDUCE_BUCKET_BYTES
from glassgpt.training.distributed.process_group import Plain, ProcessGroup, RankLost
from glassgpt.training.distributed.rank_watchdog import RankWatchdog
from glassgpt.training.interrupt import StopSignals, default_stop_signals

_STARTUP_TIMEOUT_S = 1800.0  # some read gigabytes first, some save them last; the dead are noticed at once
_POLL_S = 0.02
_ERROR_COLLECTION_S = 1.0  # how long a mistake waits for those that the others find
_RANK_LOSS_WAIT_S = 4.0  # how long an error of ours waits for the loss that it may come from
_BACKENDS = {"cuda": "nccl", "cpu": "gloo"}


class TorchProcessGroup(ProcessGroup):
    """One of `size` processes."""

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int) -> None:
        self.rank, self.world_size, self.local_rank, self.local_world_size = (
            rank,
            size,
            local_rank,
            local_size,
        )
        # Two lines to the same store: one for us, which never blocks; one for torch, which does.
        with default_stop_signals():  # whom it waits for may never come
            self._store, self._torch_store = (self._open_store() for _ in range(2))
        self._message_count = 0  # numbered, so that all mean the same one
        self._errors_are_shared = False  # of the mistake that this process ends by
        self._watchdog = RankWatchdog(self._store, rank, size, _STARTUP_TIMEOUT_S)
        self._rank_timeout_s = 0.0  # while training
        self._device = torch.device("cpu")
        self._pending_stop_sync: tuple[dist.Work, Tensor] | None = None
        self._all_reduce_s = 0.0  # by the host's clock
        self._all_reduce_events: list[tuple[Any, Any]] = []  # of the card: before and after each exchange

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> TorchProcessGroup:
        def number(name: str, default: int = 0) -> int:
            return int(environment.get(name) or default)

        team = cls(number("RANK"), number("WORLD_SIZE"), number("LOCAL_RANK"), number("LOCAL_WORLD_SIZE", 1))
        team.restart_count = number("TORCHELASTIC_RESTART_COUNT")
        name = environment.get("TORCHELASTIC_RUN_ID", "none")
        # Without a name of its own, a launch is told by its launcher, the parent of the first process.
        team.launch_id = name if name != "none" else f"{platform.node()}-{os.getppid()}"
        return team

    def _open_store(self) -> Any:
        store, *_ = next(iter(rendezvous("env://", timeout=timedelta(seconds=_STARTUP_TIMEOUT_S))))
        return PrefixStore(f"glass/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    # --- before training: in words ---

    @contextmanager
    def share_errors(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            if not self._errors_are_shared:
                self.store_set(f"mistakes/{self.rank}", error.problems)
                self._store.add("failed", 1)
                raise UserError(self._gather_errors()) from error
            raise
        except dist.DistError as error:  # as a rule of the store, which goes with the launcher
            raise self.root_cause(error) from error

    def _gather_errors(self) -> list[str]:
        """Of everybody, for the first process to say. The others have nothing to say, and go a bit later:
        the launcher ends everybody when the first one ends, and that one shall have said it."""
        self._errors_are_shared = True
        deadline = time.monotonic() + _ERROR_COLLECTION_S
        keys = [f"mistakes/{rank}" for rank in range(self.world_size)]
        while time.monotonic() < deadline and not self._store.check(keys):
            time.sleep(_POLL_S)
        if not self.is_rank_zero:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._watchdog.close("")
            time.sleep(_ERROR_COLLECTION_S)
            return []
        found: dict[str, list[int]] = {}
        for rank, key in enumerate(keys):
            for problem in json.loads(self._store.get(key)) if self._store.check([key]) else ():
                found.setdefault(problem, []).append(rank)
        return [
            problem if 0 in ranks else f"rank {', '.join(map(str, ranks))}: {problem}"
            for problem, ranks in found.items()
        ]

    def broadcast_from_rank_zero(self, make: Callable[[], Plain]) -> Plain:
        self._message_count += 1
        name = f"talk/{self._message_count}"
        if self.is_rank_zero:
            value = make()
            self.store_set(name, value)
            return value
        return self._wait_for_key(name)  # type: ignore[no-any-return]

    def run_rank_zero_first(self, work: Callable[[], None]) -> None:
        for turn in (self.is_rank_zero, self.local_rank == 0 and not self.is_rank_zero, self.local_rank > 0):
            if turn:
                work()
            self._store_barrier()

    def _store_barrier(self) -> None:
        """As `assemble`, in words."""
        self.all_gather_object(True)

    def all_gather_object(self, own: Plain) -> list[Plain]:
        self._message_count += 1
        name = f"said/{self._message_count}"
        self.store_set(f"{name}/{self.rank}", own)
        return [self._wait_for_key(f"{name}/{rank}") for rank in range(self.world_size)]

    def check_same_on_all_ranks(self, facts: Mapping[str, Any]) -> None:
        self._message_count += 1
        name = f"facts/{self._message_count}"
        self.store_set(f"{name}/{self.rank}", dict(facts))

        def compare() -> bool:
            problems = []
            for rank in range(1, self.world_size):
                theirs = self._wait_for_key(f"{name}/{rank}")
                problems += describe_mismatches(json.loads(json.dumps(dict(facts))), theirs, rank)
            if problems:
                raise UserError(problems)
            return True

        self.broadcast_from_rank_zero(compare)

    def _wait_for_key(self, name: str) -> Any:
        """What another process posts; unless one fails meanwhile, which then is everybody's failure."""
        with self._watchdog.waiting():
            while not self._store.check([name]):
                if self._store.add("failed", 0):
                    raise UserError(self._gather_errors())
                if self._watchdog.lost_message:
                    raise self._rank_lost_error()
                time.sleep(_POLL_S)
        return json.loads(self._store.get(name))

    # --- connecting ---

    def connect(self, device: torch.device, config: TrainConfig) -> list[Choice]:
        name, reason = choose_backend(config.backend, device.type)
        # Hosts always talk by gloo: a card need not be waited for to ask whether to go on.
        backends = f"cpu:gloo,{device.type}:{name}" if device.type != "cpu" else name
        self._rank_timeout_s = config.rank_timeout
        self.extend_timeout()
        with self._watchdog.waiting():
            dist.init_process_group(
                backends,
                store=self._torch_store,
                rank=self.rank,
                world_size=self.world_size,
                # Later than our own, which names who is missing.
                timeout=timedelta(seconds=self._watchdog.timeout_s + 60),
            )
        self._device = device
        machines = -(-self.world_size // self.local_world_size)
        on = f" on {machines} machines" if machines > 1 else ""
        how = "its part of the weights, gathered as needed" if config.shard else "all of the weights"
        return [
            Choice("ranks", self.world_size, f"processes{on}, as the launcher says; each holds {how}"),
            Choice("backend", name, reason),
        ]

    def extend_timeout(self) -> None:
        """Before and after training one may have much to read or to write while the others wait."""
        self._watchdog.timeout_s = max(_STARTUP_TIMEOUT_S, self._rank_timeout_s)

    # --- while training: in tensors ---

    def set_watchdog_callbacks(
        self, where: Callable[[], tuple[str, int]], record_loss: Callable[[str], None]
    ) -> None:
        self._watchdog.set_callbacks(where, record_loss)

    def waiting_for_ranks(self) -> RankWatchdog:
        return self._watchdog.waiting()

    def sync_stop_signals(self, stop: StopSignals) -> None:
        """Asked at one update and answered at the next, so that nobody waits for the answer."""
        if self._pending_stop_sync is None:  # training begins, when all are there
            self.barrier()
            self._watchdog.timeout_s = self._rank_timeout_s
        else:
            work, answer = self._pending_stop_sync
            with self._watchdog.waiting():
                work.wait()
            stop.apply_requests(*answer.tolist())
        words = torch.tensor(stop.take_local_requests(), dtype=torch.int64)
        self._pending_stop_sync = (dist.all_reduce(words, dist.ReduceOp.MAX, async_op=True), words)

    def all_reduce_mean(self, tensors: Sequence[Tensor]) -> None:
        before = self._timestamp()
        with self._watchdog.waiting():
            for piece in make_buckets(tensors, ALL_REDUCE_BUCKET_BYTES):
                flat = torch.cat([tensor.reshape(-1) for tensor in piece])
                dist.all_reduce(flat)
                flat /= self.world_size
                parts = torch.split(flat, [tensor.numel() for tensor in piece])
                for tensor, part in zip(piece, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))
        self._note(before)

    def _timestamp(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _note(self, before: Any) -> None:
        """A card exchanges long after it was asked to: its own clock is read later."""
        if self._device.type != "cuda":
            self._all_reduce_s += time.perf_counter() - before
        else:
            self._all_reduce_events.append((before, self._timestamp()))

    def take_all_reduce_s(self) -> float:
        of_card: float = sum(before.elapsed_time(after) for before, after in self._all_reduce_events) / 1000
        seconds = self._all_reduce_s + of_card
        self._all_reduce_s, self._all_reduce_events = 0.0, []
        return seconds

    @contextmanager
    def without_all_reduce_timing(self) -> Iterator[None]:
        seconds, events = self._all_reduce_s, len(self._all_reduce_events)
        yield
        self._all_reduce_s = seconds
        del self._all_reduce_events[events:]

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

    # --- between threads that save ---

    def store_set(self, name: str, value: Any) -> None:
        self._store.set(name, json.dumps(value))

    def store_get(self, name: str) -> Any:
        """Gives up, as a disk that fails would, when a process is lost: what was to be saved cannot be."""
        while not self._store.check([name]):
            if self._watchdog.wait_for_loss(_POLL_S):
                raise OSError(f"{self._watchdog.lost_message}")
        return json.loads(self._store.get(name))

    # --- the end ---

    def root_cause(self, error: BaseException) -> BaseException:
        may_be_anothers = isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError)
        return (
            self._rank_lost_error()
            if may_be_anothers and self._watchdog.wait_for_loss(_RANK_LOSS_WAIT_S)
            else error
        )

    def _rank_lost_error(self) -> RankLost:
        return RankLost(str(self._watchdog.lost_message), self._watchdog.claim_report())

    def shut_down(self, error: BaseException | None = None) -> None:
        """A process whose own error it is not leaves in order: it is not the one to be named."""
        try:
            self._shut_down(error)
        except dist.DistError as failure:  # the launcher may be gone, though all is done
            raise self.root_cause(failure) from failure

    def _shut_down(self, error: BaseException | None) -> None:
        if error is None:
            self.extend_timeout()
            if self._pending_stop_sync is not None:
                self._pending_stop_sync[0].wait()
            self._store_barrier()  # the launcher ends everybody when one ends, and the first has most to finish
        known = error is None or isinstance(error, RankLost) or self._errors_are_shared
        self._watchdog.close("" if known else f"{type(error).__name__}: {error}".replace("\n", " ")[:500])
        if error is None:
            if dist.is_initialized():
                dist.destroy_process_group()
            self._leave_last()

    def _leave_last(self) -> None:
        """Without a launcher's, the store is the first process's, and goes with it."""
        if not self.is_rank_zero:
            self.store_set(f"left/{self.rank}", True)
            return
        for rank in range(1, self.world_size):
            self._wait_for_key(f"left/{rank}")


def choose_backend(asked: str, device_type: str) -> tuple[str, str]:
    """How processes talk about what is on a device, and why."""
    if device_type not in _BACKENDS:
        raise UserError(f"several processes cannot share --device={device_type}; try --device=cpu")
    usual = _BACKENDS[device_type]
    if asked and asked not in ("nccl", "gloo"):
        raise UserError(f"--backend={asked} is not one of nccl, gloo")
    if asked == "nccl" and device_type == "cpu":
        return usual, "nccl was asked for, but it is for CUDA cards"
    if asked:
        return asked, "asked for"
    available = dist.is_nccl_available() if usual == "nccl" else dist.is_gloo_available()
    if not available:
        raise UserError(f"this build of PyTorch has no {usual}, which processes on {device_type} talk by")
    return usual, "between CUDA cards" if usual == "nccl" else "between CPUs"


def make_buckets(tensors: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """In order, each of one dtype and of at most `limit` bytes, unless it is a single tensor."""
    piece: list[Tensor] = []
    size = 0
    for tensor in tensors:
        more = tensor.numel() * tensor.element_size()
        if piece and (size + more > limit or tensor.dtype != piece[0].dtype):
            yield piece
            piece, size = [], 0
        piece.append(tensor)
        size += more
    if piece:
        yield piece


def describe_mismatches(ours: Mapping[str, Any], theirs: Mapping[str, Any], rank: int) -> list[str]:
    """Each in a sentence; `theirs` are those of `rank`, `ours` of rank 0."""
    names = [*ours, *(name for name in theirs if name not in ours)]
    return [
        f"rank {rank} has {name}={theirs.get(name)}, rank 0 has {name}={ours.get(name)}: start all of them "
        "with the same command, on the same data and versions"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]
