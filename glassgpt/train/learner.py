"""One update: micro-batches forward and backward, clipping, the finite check, the optimizer's step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from glassgpt.account.clock import Ledger
from glassgpt.config import TrainConfig
from glassgpt.model.gpt import GPT
from glassgpt.train.batching import BatchPlan
from glassgpt.train.device import Placement
from glassgpt.train.optimizers import make_optimizer, set_learning_rate
from glassgpt.train.schedule import learning_rate
from glassgpt.train.stream import Stream

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

    def watch(self, update: int, *values: Tensor) -> None:
        finite = torch.stack([value.isfinite() for value in values]).all()
        newly = ~finite & (self._first < 0)
        self._first = torch.where(newly, update, self._first)
        self.bad = torch.where(newly, 1.0, self.bad)
        self.factor = torch.where(newly, math.nan, self.factor)

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
    ) -> None:
        self.model, self.config, self.placement = model, config, placement
        self._plan, self._stream, self._ledger = plan, stream, ledger
        self.compile_error: Exception | None = None
        self.optimizer = make_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(placement.device.type, enabled=placement.dtype == "float16")
        self.finite = Finite(placement.device)
        self._forward: Callable[..., Tensor] = torch.compile(model) if placement.compile else model
        self._tried: set[str] = set()
        # On the device until somebody asks: an update never waits for the host.
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []

    def is_first(self, what: str) -> bool:
        """Whether `update` or `score` was not called yet: the first call compiles and warms up."""
        return what not in self._tried

    def update(self, number: int, first_sequence: int) -> None:
        """Does update `number` (from 0), whose sequences are `first_sequence` and on of the stream."""
        set_learning_rate(self.optimizer, learning_rate(self.config, number))
        self.model.train()
        starts = range(first_sequence, first_sequence + self._plan.sequences, self._plan.batch_size)
        losses = [self._micro_step(number, micro_step, start) for micro_step, start in enumerate(starts)]
        loss = torch.stack(losses).mean()
        self.scaler.unscale_(self.optimizer)
        norm = self._clip()
        # With a scaler an infinite gradient is routine: it skips that update and lowers its scale.
        self.finite.watch(number, *((loss,) if self.scaler.is_enabled() else (loss, norm)))
        if not self.scaler.is_enabled():
            # What the scaler does in float16: a fused optimizer skips its step where this is 1.
            vars(self.optimizer).update(found_inf=self.finite.bad, grad_scale=None)
        if self.placement.device.type != "mps" or self.finite.first_bad_update() is None:
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._losses.append(loss)
        self._norms.append(norm)

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
                return self._forward(tokens, targets, "none")

        return self._guarded("score", call)

    def _micro_step(self, number: int, micro_step: int, first_sequence: int) -> Tensor:
        with self._ledger.phase("data"):
            tokens, targets = self._stream.micro_batch(first_sequence)

        def call() -> Tensor:
            if self.config.dropout:
                torch.manual_seed(_dropout_seed(self.config.seed, number, micro_step))
            with self.placement.autocast():
                loss = self._forward(tokens, targets)
            share = loss / self._plan.micro_steps
            if self.scaler.is_enabled():
                share = share * self.finite.factor  # a scaler skips an update by its gradients only
            torch.autograd.backward(self.scaler.scale(share))
            return loss.detach()

        return self._guarded("update", call)

    def _clip(self) -> Tensor:
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        if self.config.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.config.grad_clip, norm, foreach=True)
        return norm

    def _guarded(self, what: str, call: Callable[[], T]) -> T:
        """Compiling is lazy: it fails, if it does, in the first real call. Then the run goes on without."""
        try:
            result = call()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if what in self._tried or self._forward is self.model:
                raise
            self._forward = self.model
            self.optimizer.zero_grad(set_to_none=True)  # whatever the broken attempt left behind
            self.compile_error = error
            result = call()
        self._tried.add(what)
        return result


def _dropout_seed(seed: int, update: int, micro_step: int) -> int:
    """Masks are a function of (seed, update, micro-step): a resumed run drops what it would have dropped."""
    return int(np.random.SeedSequence([seed, update, micro_step]).generate_state(1, np.uint64)[0] >> 1)
