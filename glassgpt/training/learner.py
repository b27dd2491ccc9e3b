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
from glassgpt.errors import UserError, error_type_and_message
from glassgpt.estimate.batching import BatchPlan
from glassgpt.model.cuda_graph import CudaGraphRunner
from glassgpt.model.gpt import GPT
from glassgpt.record.clock import Ledger
from glassgpt.schedule import learning_rate
from glassgpt.training.device import DTYPES, ExecutionConfig
from glassgpt.training.distributed.fsdp import local_shard
from glassgpt.training.distributed.process_group import ProcessGroup
from glassgpt.training.loader import BatchLoader
from glassgpt.training.optimizers import make_optimizers

T = TypeVar("T")


class FiniteCheck:
    """Remembers on the device whether a loss or gradient was ever not finite, and since which update.

    The optimizer reads the flag on the device too and leaves the weights alone from then on. So nothing bad
    is ever applied, and no update waits for the host to look.
    """

    def __init__(self, device: torch.device) -> None:
        self.found_nonfinite = torch.zeros((), device=device)
        self.nan_factor = torch.ones((), device=device)  # NaN once something was bad
        self._first_bad = torch.full((), -1, dtype=torch.int64, device=device)

    def check(self, update: Tensor, *values: Tensor) -> None:
        finite = torch.stack([value.isfinite() for value in values]).all()
        newly = ~finite & (self._first_bad < 0)
        # In place: whoever was given these tensors sees it.
        self._first_bad.copy_(torch.where(newly, update, self._first_bad))
        self.found_nonfinite.masked_fill_(newly, 1.0)
        self.nan_factor.masked_fill_(newly, math.nan)

    def first_bad_update(self) -> int | None:
        """Waits for the device."""
        first = int(self._first_bad)
        return None if first < 0 else first


class Learner:
    """The model with everything that changes it."""

    def __init__(
        self,
        model: GPT,
        config: TrainConfig,
        placement: ExecutionConfig,
        plan: BatchPlan,
        stream: BatchLoader,
        ledger: Ledger,
        team: ProcessGroup | None = None,
    ) -> None:
        self.model, self.config, self.execution = model, config, placement
        self._process_group = team or ProcessGroup()
        self._batch_plan, self._loader, self._ledger = plan, stream, ledger
        self._own_fallbacks: dict[str, str] = {}  # `compile`, `kernels`, `graph`: why it goes on without
        self.fallbacks: dict[str, str] = {}  # of all processes of the team
        self.optimizers = make_optimizers(model, config, DTYPES[placement.dtype])
        self.scaler = torch.amp.GradScaler(placement.device.type, enabled=placement.dtype == "float16")
        self.finite_check = FiniteCheck(placement.device)
        model.set_compiled(placement.compile)
        record = CudaGraphRunner if placement.graph else _as_it_is
        self._run_micro_step, self._run_clip_and_step = record(self._micro_step), record(self._clip_and_step)
        self._called: set[str] = set()
        self._now = (0, 0)  # update and micro-step
        # On the device until somebody asks: an update never waits for the host.
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []

    def is_first_call(self, what: str) -> bool:
        """Whether `update` or `score` was not called yet: the first call compiles and warms up."""
        return what not in self._called

    def update(self, number: int, first_sequence: int) -> None:
        """Does update `number` (from 0), whose sequences are `first_sequence` and on of the stream.

        Its micro-batches are shared by the team: each process does as many, one after the other.
        """
        for optimizer in self.optimizers:
            optimizer.set_learning_rate(learning_rate(self.config, number))
        self.model.train()
        size, count = self._batch_plan.batch_size, self._batch_plan.micro_steps
        first = self._process_group.rank * count
        starts = [first_sequence + (first + step) * size for step in range(count)]
        comes_next = [*starts[1:], starts[0] + self._batch_plan.sequences]
        losses = []
        for step, (start, following) in enumerate(zip(starts, comes_next, strict=True)):
            with self._ledger.phase("data"):
                batch = self._loader.micro_batch(start, following)
                weight = self._loader.micro_batch_weight(start, first_sequence)
            self._now = (number, first + step)
            self._seed_dropout()
            with self._gathering(is_last=step == count - 1):
                losses.append(self._run_or_capture(self._run_micro_step, *batch, *weight).clone())
        loss = torch.stack(losses).mean()
        self._process_group.all_reduce_mean([loss] if self.execution.shard else [*self._gradients(), loss])
        norm = self._run_or_capture(
            self._run_clip_and_step, torch.full_like(loss, number, dtype=torch.int64), loss
        )
        self._losses.append(loss)
        self._norms.append(norm.clone())

    def _gathering(self, is_last: bool) -> AbstractContextManager[object]:
        """Sharded, a micro-batch gathers weights from the others; the last one exchanges gradients."""
        if not self.execution.shard:
            return nullcontext()
        self.model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        return self._process_group.waiting_for_ranks()

    def _run_or_capture(self, work: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> Tensor:
        """What `work` gives. Recording it, when its time has come, is accounted for as compiling."""
        if isinstance(work, CudaGraphRunner) and work.will_capture_next:
            with self._ledger.phase("compile"):
                work.capture(*inputs)
            if work.capture_error:
                self._own_fallbacks["graph"] = error_type_and_message(work.capture_error)
            self._sync_fallbacks()
        return work(*inputs)[0]

    def first_bad_update(self, done: int) -> int | None:
        """The first update that was not finite, of the `done` that were tried. Waits for the device.

        A float16 scaler that has been halving its scale ever since found no gradient finite for long.
        """
        if self.scaler.is_enabled() and self.scaler.get_scale() < 1:
            return done - 1
        return self.finite_check.first_bad_update()

    def take_results(self) -> tuple[list[float], list[float]]:
        """Loss and gradient norm of every update since last asked. Waits for the device."""
        self.execution.synchronize()
        results = [torch.stack(values).tolist() if values else [] for values in (self._losses, self._norms)]
        self._losses, self._norms = [], []
        return results[0], results[1]

    def score(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Loss per token (B, T), nothing learned."""
        self.model.eval()

        def call() -> Tensor:
            with torch.no_grad(), self.execution.autocast():
                return self.model(tokens, targets, "none")  # type: ignore[no-any-return]

        with self._process_group.waiting_for_ranks() if self.execution.shard else nullcontext():
            return self._call_with_fallback("score", call)

    def reshard(self) -> None:
        """After scoring: of the weights that were gathered for it, each process keeps its part."""
        if self.execution.shard:
            self.model.reshard()  # type: ignore[operator]

    def _seed_dropout(self) -> None:
        if self.config.dropout:
            torch.manual_seed(_dropout_seed(self.config.seed, *self._now))

    def _micro_step(self, tokens: Tensor, targets: Tensor, weight: Tensor | None = None) -> tuple[Tensor]:
        """Forward and backward; the gradients add up. `weight`: in the update's mean, if it is not 1."""

        def call() -> Tensor:
            with self.execution.autocast():
                loss: Tensor = self.model(tokens, targets)
            if weight is not None:
                loss = loss * weight
            share = loss / self._batch_plan.micro_steps
            if self.scaler.is_enabled():
                share = share * self.finite_check.nan_factor  # a scaler skips an update by its gradients only
            torch.autograd.backward(self.scaler.scale(share))
            return loss.detach()

        return (self._call_with_fallback("update", call),)

    def _clip_and_step(self, number: Tensor, loss: Tensor) -> tuple[Tensor]:
        """What the gradients are for. Returns their norm."""
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)  # type: ignore[arg-type]
        norm = self._clip()
        if self.scaler.is_enabled():
            # An infinite gradient is routine: that update is skipped, by all, and the scale lowered.
            self.finite_check.check(number, loss)
            skip = (~norm.isfinite()).float()
        else:
            self.finite_check.check(number, loss, norm)
            skip = self.finite_check.found_nonfinite
        self._step(skip)
        self.scaler.update()
        self.model.zero_grad(set_to_none=not self.execution.graph)  # a recording wants them in their place
        return (norm,)

    def _step(self, skip: Tensor) -> None:
        """Unless `skip` is 1, which is left to the device to see; Apple's kernel cannot."""
        on_mps = self.execution.device.type == "mps"
        if on_mps and skip:
            return
        for optimizer in self.optimizers:
            optimizer.found_inf = None if on_mps else skip
            optimizer.step()

    def _clip(self) -> Tensor:
        gradients = self._gradients()
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.execution.shard:
            norm = self._process_group.all_reduce_norm(norm)
        if self.config.grad_clip:
            # As torch's clip_grads_with_norm_ does, which knows parameters only, and not their parts.
            factor = (self.config.grad_clip / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, factor)
        return norm

    def _gradients(self) -> list[Tensor]:
        """Of a model that is spread over processes: this one's parts."""
        parameters = self.model.parameters()
        return [local_shard(parameter.grad) for parameter in parameters if parameter.grad is not None]

    def _call_with_fallback(self, what: str, call: Callable[[], T]) -> T:
        """Code is built when it is first called, and fails then, if it does. The run goes on without it."""
        try:
            result = call()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if what in self._called or not (self.model.kernels or self.model.is_compiled):
                raise
            broken = "kernels" if self.model.kernels else "compile"
            self._own_fallbacks[broken] = error_type_and_message(error)
            if self.execution.shard:
                raise UserError(self._why_not_without(broken)) from error
            self._disable_compiled_code()
            self.model.zero_grad(set_to_none=True)  # whatever the broken attempt left behind
            self._seed_dropout()
            result = call()
        if what not in self._called:
            self._called.add(what)
            self._sync_fallbacks()
        return result

    def _why_not_without(self, broken: str) -> str:
        flag = "--kernels=plain" if broken == "kernels" else "--compile=off"
        return (
            f"rank {self._process_group.rank} could not build code for the model ({self._own_fallbacks[broken]}), and "
            f"with --shard it cannot compute alone once more; try {flag}"
        )

    def _disable_compiled_code(self) -> None:
        self.model.set_kernels(False)
        self.model.set_float8(False)  # which is made of them
        self.model.set_compiled(False)

    def _sync_fallbacks(self) -> None:
        """All processes come here at the same call. What one of them has to do without, all do without; but a
        recording computes the same as what it records."""
        everybodys = self._process_group.all_gather_object(self._own_fallbacks)
        for what in ("kernels", "compile", "graph"):
            if ranks := [rank for rank, theirs in enumerate(everybodys) if what in theirs]:
                whose = f"rank {', '.join(map(str, ranks))}: " if self._process_group.world_size > 1 else ""
                self.fallbacks.setdefault(what, f"{whose}{everybodys[ranks[0]][what]}")
        if "kernels" in self.fallbacks or "compile" in self.fallbacks:
            self._disable_compiled_code()


def _as_it_is(work: T) -> T:
    return work


def _dropout_seed(seed: int, update: int, micro_step: int) -> int:
    """Masks are a function of (seed, update, micro-step): a resumed run drops what it would have dropped."""
    return int(np.random.SeedSequence([seed, update, micro_step]).generate_state(1, np.uint64)[0] >> 1)
