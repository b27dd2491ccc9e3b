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
from glassgpt.estimate.memory import AVERAGED_BYTES
from glassgpt.training.distributed.process_group import Plain, RankLost, Team
from glassgpt.training.distributed.rank_watchdog import Watch
from glassgpt.training.interrupt import Stop, ended_at_once

_STARTUP_TIMEOUT_S = 1800.0  # some read gigabytes first, some save them last; the dead are noticed at once
_POLL_S = 0.02
_OTHERS_MISTAKES_S = 1.0  # how long a mistake waits for those that the others find
_BLAME_S = 4.0  # how long an error of ours waits for the loss that it may come from
_BACKENDS = {"cuda": "nccl", "cpu": "gloo"}


class Ranks(Team):
    """One of `size` processes."""

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int) -> None:
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size
        # Two lines to the same store: one for us, which never blocks; one for torch, which does.
        with ended_at_once():  # whom it waits for may never come
            self._store, self._torchs_store = (self._open_store() for _ in range(2))
        self._talks = 0  # numbered, so that all mean the same one
        self._all_know = False  # of the mistake that this process ends by
        self._watch = Watch(self._store, rank, size, _STARTUP_TIMEOUT_S)
        self._rank_timeout_s = 0.0  # while training
        self._device = torch.device("cpu")
        self._question: tuple[dist.Work, Tensor] | None = None
        self._exchanged_s = 0.0  # by the host's clock
        self._events: list[tuple[Any, Any]] = []  # of the card: before and after each exchange

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Ranks:
        def number(name: str, default: int = 0) -> int:
            return int(environment.get(name) or default)

        team = cls(number("RANK"), number("WORLD_SIZE"), number("LOCAL_RANK"), number("LOCAL_WORLD_SIZE", 1))
        team.attempt = number("TORCHELASTIC_RESTART_COUNT")
        name = environment.get("TORCHELASTIC_RUN_ID", "none")
        # Without a name of its own, a launch is told by its launcher, the parent of the first process.
        team.launch = name if name != "none" else f"{platform.node()}-{os.getppid()}"
        return team

    def _open_store(self) -> Any:
        store, *_ = next(iter(rendezvous("env://", timeout=timedelta(seconds=_STARTUP_TIMEOUT_S))))
        return PrefixStore(f"glass/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    # --- before training: in words ---

    @contextmanager
    def together(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            if not self._all_know:
                self.post(f"mistakes/{self.rank}", error.problems)
                self._store.add("failed", 1)
                raise UserError(self._all_mistakes()) from error
            raise
        except dist.DistError as error:  # as a rule of the store, which goes with the launcher
            raise self.blame(error) from error

    def _all_mistakes(self) -> list[str]:
        """Of everybody, for the first process to say. The others have nothing to say, and go a bit later:
        the launcher ends everybody when the first one ends, and that one shall have said it."""
        self._all_know = True
        deadline = time.monotonic() + _OTHERS_MISTAKES_S
        keys = [f"mistakes/{rank}" for rank in range(self.size)]
        while time.monotonic() < deadline and not self._store.check(keys):
            time.sleep(_POLL_S)
        if not self.is_first:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._watch.close("")
            time.sleep(_OTHERS_MISTAKES_S)
            return []
        found: dict[str, list[int]] = {}
        for rank, key in enumerate(keys):
            for problem in json.loads(self._store.get(key)) if self._store.check([key]) else ():
                found.setdefault(problem, []).append(rank)
        return [
            problem if 0 in ranks else f"rank {', '.join(map(str, ranks))}: {problem}"
            for problem, ranks in found.items()
        ]

    def from_first(self, make: Callable[[], Plain]) -> Plain:
        self._talks += 1
        name = f"talk/{self._talks}"
        if self.is_first:
            value = make()
            self.post(name, value)
            return value
        return self._await(name)  # type: ignore[no-any-return]

    def in_turn(self, work: Callable[[], None]) -> None:
        for turn in (self.is_first, self.local_rank == 0 and not self.is_first, self.local_rank > 0):
            if turn:
                work()
            self._assemble()

    def _assemble(self) -> None:
        """As `assemble`, in words."""
        self.everybodys(True)

    def everybodys(self, own: Plain) -> list[Plain]:
        self._talks += 1
        name = f"said/{self._talks}"
        self.post(f"{name}/{self.rank}", own)
        return [self._await(f"{name}/{rank}") for rank in range(self.size)]

    def check_same(self, facts: Mapping[str, Any]) -> None:
        self._talks += 1
        name = f"facts/{self._talks}"
        self.post(f"{name}/{self.rank}", dict(facts))

        def compare() -> bool:
            problems = []
            for rank in range(1, self.size):
                theirs = self._await(f"{name}/{rank}")
                problems += differences(json.loads(json.dumps(dict(facts))), theirs, rank)
            if problems:
                raise UserError(problems)
            return True

        self.from_first(compare)

    def _await(self, name: str) -> Any:
        """What another process posts; unless one fails meanwhile, which then is everybody's failure."""
        with self._watch.meet():
            while not self._store.check([name]):
                if self._store.add("failed", 0):
                    raise UserError(self._all_mistakes())
                if self._watch.lost:
                    raise self._lost()
                time.sleep(_POLL_S)
        return json.loads(self._store.get(name))

    # --- connecting ---

    def connect(self, device: torch.device, config: TrainConfig) -> list[Choice]:
        name, reason = choose_backend(config.backend, device.type)
        # Hosts always talk by gloo: a card need not be waited for to ask whether to go on.
        backends = f"cpu:gloo,{device.type}:{name}" if device.type != "cpu" else name
        self._rank_timeout_s = config.rank_timeout
        self.be_patient()
        with self._watch.meet():
            dist.init_process_group(
                backends,
                store=self._torchs_store,
                rank=self.rank,
                world_size=self.size,
                # Later than our own, which names who is missing.
                timeout=timedelta(seconds=self._watch.timeout_s + 60),
            )
        self._device = device
        machines = -(-self.size // self.local_size)
        on = f" on {machines} machines" if machines > 1 else ""
        how = "its part of the weights, gathered as needed" if config.shard else "all of the weights"
        return [
            Choice("ranks", self.size, f"processes{on}, as the launcher says; each holds {how}"),
            Choice("backend", name, reason),
        ]

    def be_patient(self) -> None:
        """Before and after training one may have much to read or to write while the others wait."""
        self._watch.timeout_s = max(_STARTUP_TIMEOUT_S, self._rank_timeout_s)

    # --- while training: in tensors ---

    def watch(self, where: Callable[[], tuple[str, int]], record_loss: Callable[[str], None]) -> None:
        self._watch.follow(where, record_loss)

    def meeting(self) -> Watch:
        return self._watch.meet()

    def heed(self, stop: Stop) -> None:
        """Asked at one update and answered at the next, so that nobody waits for the answer."""
        if self._question is None:  # training begins, when all are there
            self.assemble()
            self._watch.timeout_s = self._rank_timeout_s
        else:
            work, answer = self._question
            with self._watch.meet():
                work.wait()
            stop.act(*answer.tolist())
        words = torch.tensor(stop.hear(), dtype=torch.int64)
        self._question = (dist.all_reduce(words, dist.ReduceOp.MAX, async_op=True), words)

    def average(self, tensors: Sequence[Tensor]) -> None:
        before = self._now()
        with self._watch.meet():
            for piece in pieces(tensors, AVERAGED_BYTES):
                flat = torch.cat([tensor.reshape(-1) for tensor in piece])
                dist.all_reduce(flat)
                flat /= self.size
                parts = torch.split(flat, [tensor.numel() for tensor in piece])
                for tensor, part in zip(piece, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))
        self._note(before)

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _note(self, before: Any) -> None:
        """A card exchanges long after it was asked to: its own clock is read later."""
        if self._device.type != "cuda":
            self._exchanged_s += time.perf_counter() - before
        else:
            self._events.append((before, self._now()))

    def exchanged_s(self) -> float:
        of_card: float = sum(before.elapsed_time(after) for before, after in self._events) / 1000
        seconds = self._exchanged_s + of_card
        self._exchanged_s, self._events = 0.0, []
        return seconds

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        seconds, events = self._exchanged_s, len(self._events)
        yield
        self._exchanged_s = seconds
        del self._events[events:]

    def assemble(self) -> None:
        self.total(np.zeros(1))

    def norm_of_parts(self, own: Tensor) -> Tensor:
        square = own.double().square()
        with self._watch.meet():
            dist.all_reduce(square)
        return square.sqrt().to(own.dtype)

    def total(self, values: np.ndarray) -> np.ndarray:
        sums = torch.from_numpy(values.copy())
        with self._watch.meet():
            dist.all_reduce(sums)
        return sums.numpy()

    def table(self, own: Sequence[float]) -> list[list[float]]:
        rows = np.zeros((self.size, len(own)))
        rows[self.rank] = own
        table: list[list[float]] = self.total(rows).tolist()
        return table

    # --- between threads that save ---

    def post(self, name: str, value: Any) -> None:
        self._store.set(name, json.dumps(value))

    def collect(self, name: str) -> Any:
        """Gives up, as a disk that fails would, when a process is lost: what was to be saved cannot be."""
        while not self._store.check([name]):
            if self._watch.wait_for_loss(_POLL_S):
                raise OSError(f"{self._watch.lost}")
        return json.loads(self._store.get(name))

    # --- the end ---

    def blame(self, error: BaseException) -> BaseException:
        may_be_anothers = isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError)
        return self._lost() if may_be_anothers and self._watch.wait_for_loss(_BLAME_S) else error

    def _lost(self) -> RankLost:
        return RankLost(str(self._watch.lost), self._watch.say_lost())

    def leave(self, error: BaseException | None = None) -> None:
        """A process whose own error it is not leaves in order: it is not the one to be named."""
        try:
            self._leave(error)
        except dist.DistError as failure:  # the launcher may be gone, though all is done
            raise self.blame(failure) from failure

    def _leave(self, error: BaseException | None) -> None:
        if error is None:
            self.be_patient()
            if self._question is not None:
                self._question[0].wait()
            self._assemble()  # the launcher ends everybody when one ends, and the first has most to finish
        known = error is None or isinstance(error, RankLost) or self._all_know
        self._watch.close("" if known else f"{type(error).__name__}: {error}".replace("\n", " ")[:500])
        if error is None:
            if dist.is_initialized():
                dist.destroy_process_group()
            self._leave_last()

    def _leave_last(self) -> None:
        """Without a launcher's, the store is the first process's, and goes with it."""
        if not self.is_first:
            self.post(f"left/{self.rank}", True)
            return
        for rank in range(1, self.size):
            self._await(f"left/{rank}")


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


def pieces(tensors: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
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


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], rank: int) -> list[str]:
    """Each in a sentence; `theirs` are those of `rank`, `ours` of rank 0."""
    names = [*ours, *(name for name in theirs if name not in ours)]
    return [
        f"rank {rank} has {name}={theirs.get(name)}, rank 0 has {name}={ours.get(name)}: start all of them "
        "with the same command, on the same data and versions"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]
