"""One update: micro-batches forward and backward, clipping, the finite check, the optimizer's step."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, first_line
from glassgpt.estimate.batching import BatchPlan
from glassgpt.model.cuda_graph import Recording
from glassgpt.model.gpt import GPT
from glassgpt.record.clock import Ledger
from glassgpt.schedule import learning_rate
from glassgpt.training.device import DTYPES, Placement
from glassgpt.training.distributed.fsdp import own_part
from glassgpt.training.distributed.process_group import Team
from glassgpt.training.loader import Stream
from glassgpt.training.optimizers import make_optimizers

T = TypeVar("T")


class Finite:
    """Remembers on the device whether a loss or gradient was ever not finite, and since which update.

    The optimizer reads the flag on the device too and leaves the weights alone from then on. So nothing bad
    is ever applied, and no update waits for the host to look.
    """

    def __init__(self, device: torch.device) -> None:
        self.bad = torch.zeros((), device=device)
        self.factor = torch.ones((), device=device)  # NaN once something was bad
        self._first = torch.full((), -1, dtype=torch.int64, device=device)

    def watch(self, update: Tensor, *values: Tensor) -> None:
        finite = torch.stack([value.isfinite() for value in values]).all()
        newly = ~finite & (self._first < 0)
        # In place: whoever was given these tensors sees it.
        self._first.copy_(torch.where(newly, update, self._first))
        self.bad.masked_fill_(newly, 1.0)
        self.factor.masked_fill_(newly, math.nan)

    def first_bad_update(self) -> int | None:
        """Waits for the device."""
        first = int(self._first)
        return None if first < 0 else first


class Learner:
    """The model with everything that changes it."""

    def __init__(
        self,
        model: GPT,
        config: TrainConfig,
        placement: Placement,
        plan: BatchPlan,
        stream: Stream,
        ledger: Ledger,
        team: Team | None = None,
    ) -> None:
        self.model, self.config, self.placement = model, config, placement
        self._team = team or Team()
        self._plan, self._stream, self._ledger = plan, stream, ledger
        self._own_setbacks: dict[str, str] = {}  # `compile`, `kernels`, `graph`: why it goes on without
        self.setbacks: dict[str, str] = {}  # of all processes of the team
        self.optimizers = make_optimizers(model, config, DTYPES[placement.dtype])
        self.scaler = torch.amp.GradScaler(placement.device.type, enabled=placement.dtype == "float16")
        self.finite = Finite(placement.device)
        model.set_compiled(placement.compile)
        record = Recording if placement.graph else _as_it_is
        self._do_micro_step, self._do_finish = record(self._micro_step), record(self._finish)
        self._tried: set[str] = set()
        self._now = (0, 0)  # update and micro-step
        # On the device until somebody asks: an update never waits for the host.
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []

    def is_first(self, what: str) -> bool:
        """Whether `update` or `score` was not called yet: the first call compiles and warms up."""
        return what not in self._tried

    def update(self, number: int, first_sequence: int) -> None:
        """Does update `number` (from 0), whose sequences are `first_sequence` and on of the stream.

        Its micro-batches are shared by the team: each process does as many, one after the other.
        """
        for optimizer in self.optimizers:
            optimizer.set_learning_rate(learning_rate(self.config, number))
        self.model.train()
        size, count = self._plan.batch_size, self._plan.micro_steps
        first = self._team.rank * count
        starts = [first_sequence + (first + step) * size for step in range(count)]
        comes_next = [*starts[1:], starts[0] + self._plan.sequences]
        losses = []
        for step, (start, following) in enumerate(zip(starts, comes_next, strict=True)):
            with self._ledger.phase("data"):
                batch = self._stream.micro_batch(start, following)
                weight = self._stream.weight(start, first_sequence)
            self._now = (number, first + step)
            self._seed_dropout()
            with self._gathering(is_last=step == count - 1):
                losses.append(self._done(self._do_micro_step, *batch, *weight).clone())
        loss = torch.stack(losses).mean()
        self._team.average([loss] if self.placement.shard else [*self._gradients(), loss])
        norm = self._done(self._do_finish, torch.full_like(loss, number, dtype=torch.int64), loss)
        self._losses.append(loss)
        self._norms.append(norm.clone())

    def _gathering(self, is_last: bool) -> AbstractContextManager[object]:
        """Sharded, a micro-batch gathers weights from the others; the last one exchanges gradients."""
        if not self.placement.shard:
            return nullcontext()
        self.model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        return self._team.meeting()

    def _done(self, work: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> Tensor:
        """What `work` gives. Recording it, when its time has come, is accounted for as compiling."""
        if isinstance(work, Recording) and work.is_due:
            with self._ledger.phase("compile"):
                work.record(*inputs)
            if work.failure:
                self._own_setbacks["graph"] = first_line(work.failure)
            self._share_setbacks()
        return work(*inputs)[0]

    def first_bad_update(self, done: int) -> int | None:
        """The first update that was not finite, of the `done` that were tried. Waits for the device.

        A float16 scaler that has been halving its scale ever since found no gradient finite for long.
        """
        if self.scaler.is_enabled() and self.scaler.get_scale() < 1:
            return done - 1
        return self.finite.first_bad_update()

    def take_results(self) -> tuple[list[float], list[float]]:
        """Loss and gradient norm of every update since last asked. Waits for the device."""
        self.placement.synchronize()
        results = [torch.stack(values).tolist() if values else [] for values in (self._losses, self._norms)]
        self._losses, self._norms = [], []
        return results[0], results[1]

    def score(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Loss per token (B, T), nothing learned."""
        self.model.eval()

        def call() -> Tensor:
            with torch.no_grad(), self.placement.autocast():
                return self.model(tokens, targets, "none")  # type: ignore[no-any-return]

        with self._team.meeting() if self.placement.shard else nullcontext():
            return self._guarded("score", call)

    def let_go(self) -> None:
        """After scoring: of the weights that were gathered for it, each process keeps its part."""
        if self.placement.shard:
            self.model.reshard()  # type: ignore[operator]

    def _seed_dropout(self) -> None:
        if self.config.dropout:
            torch.manual_seed(_dropout_seed(self.config.seed, *self._now))

    def _micro_step(self, tokens: Tensor, targets: Tensor, weight: Tensor | None = None) -> tuple[Tensor]:
        """Forward and backward; the gradients add up. `weight`: in the update's mean, if it is not 1."""

        def call() -> Tensor:
            with self.placement.autocast():
                loss: Tensor = self.model(tokens, targets)
            if weight is not None:
                loss = loss * weight
            share = loss / self._plan.micro_steps
            if self.scaler.is_enabled():
                share = share * self.finite.factor  # a scaler skips an update by its gradients only
            torch.autograd.backward(self.scaler.scale(share))
            return loss.detach()

        return (self._guarded("update", call),)

    def _finish(self, number: Tensor, loss: Tensor) -> tuple[Tensor]:
        """What the gradients are for. Returns their norm."""
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)  # type: ignore[arg-type]
        norm = self._clip()
        if self.scaler.is_enabled():
            # An infinite gradient is routine: that update is skipped, by all, and the scale lowered.
            self.finite.watch(number, loss)
            skip = (~norm.isfinite()).float()
        else:
            self.finite.watch(number, loss, norm)
            skip = self.finite.bad
        self._step(skip)
        self.scaler.update()
        self.model.zero_grad(set_to_none=not self.placement.graph)  # a recording wants them in their place
        return (norm,)

    def _step(self, skip: Tensor) -> None:
        """Unless `skip` is 1, which is left to the device to see; Apple's kernel cannot."""
        on_mps = self.placement.device.type == "mps"
        if on_mps and skip:
            return
        for optimizer in self.optimizers:
            optimizer.found_inf = None if on_mps else skip
            optimizer.step()

    def _clip(self) -> Tensor:
        gradients = self._gradients()
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.placement.shard:
            norm = self._team.norm_of_parts(norm)
        if self.config.grad_clip:
            # As torch's clip_grads_with_norm_ does, which knows parameters only, and not their parts.
            factor = (self.config.grad_clip / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, factor)
        return norm

    def _gradients(self) -> list[Tensor]:
        """Of a model that is spread over processes: this one's parts."""
        parameters = self.model.parameters()
        return [own_part(parameter.grad) for parameter in parameters if parameter.grad is not None]

    def _guarded(self, what: str, call: Callable[[], T]) -> T:
        """Code is built when it is first called, and fails then, if it does. The run goes on without it."""
        try:
            result = call()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if what in self._tried or not (self.model.kernels or self.model.is_compiled):
                raise
            broken = "kernels" if self.model.kernels else "compile"
            self._own_setbacks[broken] = first_line(error)
            if self.placement.shard:
                raise UserError(self._why_not_without(broken)) from error
            self._do_without()
            self.model.zero_grad(set_to_none=True)  # whatever the broken attempt left behind
            self._seed_dropout()
            result = call()
        if what not in self._tried:
            self._tried.add(what)
            self._share_setbacks()
        return result

    def _why_not_without(self, broken: str) -> str:
        flag = "--kernels=plain" if broken == "kernels" else "--compile=off"
        return (
            f"rank {self._team.rank} could not build code for the model ({self._own_setbacks[broken]}), and "
            f"with --shard it cannot compute alone once more; try {flag}"
        )

    def _do_without(self) -> None:
        self.model.set_kernels(False)
        self.model.set_float8(False)  # which is made of them
        self.model.set_compiled(False)

    def _share_setbacks(self) -> None:
        """All processes come here at the same call. What one of them has to do without, all do without; but a
        recording computes the same as what it records."""
        everybodys = self._team.everybodys(self._own_setbacks)
        for what in ("kernels", "compile", "graph"):
            if ranks := [rank for rank, theirs in enumerate(everybodys) if what in theirs]:
                whose = f"rank {', '.join(map(str, ranks))}: " if self._team.size > 1 else ""
                self.setbacks.setdefault(what, f"{whose}{everybodys[ranks[0]][what]}")
        if "kernels" in self.setbacks or "compile" in self.setbacks:
            self._do_without()


def _as_it_is(work: T) -> T:
    return work


def _dropout_seed(seed: int, update: int, micro_step: int) -> int:
    """Masks are a function of (seed, update, micro-step): a resumed run drops what it would have dropped."""
    return int(np.random.SeedSequence([seed, update, micro_step]).generate_state(1, np.uint64)[0] >> 1)
