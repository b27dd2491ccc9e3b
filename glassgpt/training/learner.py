"""One update: micro-batches forward and backward, gradient clipping, the finite check, the optimizer step."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, error_type_and_message
from glassgpt.estimate.batching import BatchPlan
from glassgpt.model.cuda_graph import CudaGraphRunner
from glassgpt.model.gpt import GPT
from glassgpt.model.kernel_build import KernelBuild
from glassgpt.record.ledger import Ledger
from glassgpt.schedule import learning_rate
from glassgpt.training.device import TORCH_DTYPES, ExecutionConfig
from glassgpt.training.distributed.fsdp import local_shard
from glassgpt.training.distributed.process_group import ALONE, ProcessGroup
from glassgpt.training.loader import BatchLoader
from glassgpt.training.optimizers import make_optimizers

T = TypeVar("T")
Work = Callable[..., tuple[Tensor, ...]]


class FiniteCheck:
    """Remembers on the device whether a loss or gradient was ever not finite, and since which update.

    The optimizer reads the flag on the device too, and leaves the weights alone from then on. So nothing bad
    is ever applied, and no update waits for the host.
    """

    def __init__(self, device: torch.device) -> None:
        self.found_nonfinite = torch.zeros((), device=device)
        self.nan_factor = torch.ones((), device=device)  # NaN once something was not finite
        self._first_bad = torch.full((), -1, dtype=torch.int64, device=device)

    def check(self, update: Tensor, *values: Tensor) -> None:
        is_finite = torch.stack([value.isfinite() for value in values]).all()
        is_first_bad = ~is_finite & (self._first_bad < 0)
        # In place: optimizers and CUDA graphs hold these tensors.
        self._first_bad.copy_(torch.where(is_first_bad, update, self._first_bad))
        self.found_nonfinite.masked_fill_(is_first_bad, 1.0)
        self.nan_factor.masked_fill_(is_first_bad, math.nan)

    def first_bad_update(self) -> int | None:
        """Waits for the device."""
        first = int(self._first_bad)
        return None if first < 0 else first


class Learner:
    """The model with everything that changes it: optimizers, gradient scaler, finite check."""

    def __init__(
        self,
        model: GPT,
        config: TrainConfig,
        execution: ExecutionConfig,
        batch_plan: BatchPlan,
        loader: BatchLoader,
        ledger: Ledger,
        group: ProcessGroup = ALONE,
        kernel_build: KernelBuild | None = None,
    ) -> None:
        """`kernel_build`: kernels that are still being built, which the first call waits for."""
        self.model, self.config, self.execution = model, config, execution
        self._group, self._batch_plan, self._loader, self._ledger = group, batch_plan, loader, ledger
        self._kernel_build = kernel_build
        self._own_fallbacks: dict[str, str] = {}  # `compile`, `kernels`, `graph`: why this rank runs without
        self.fallbacks: dict[str, str] = {}  # of all ranks
        self.optimizers = make_optimizers(model, config, TORCH_DTYPES[execution.dtype])
        self.scaler = torch.amp.GradScaler(execution.device.type, enabled=execution.dtype == "float16")
        self.finite_check = FiniteCheck(execution.device)
        model.set_compiled(execution.compile)
        # A sharded model reduces its gradients itself.
        averaged = [] if execution.shard else list(model.parameters())
        self._group.prepare_all_reduce(averaged, fixed_addresses=execution.graph)
        self._forward_backward = partial(self._call_with_fallback, "update", self._micro_step)
        # With one micro-batch, and nothing to all-reduce, an update is one piece of work; else it is several.
        self._is_one_micro_batch = batch_plan.micro_steps == 1 and self._group.world_size == 1
        captured: Callable[[Work], Work] = CudaGraphRunner if execution.graph else lambda work: work
        self._run_micro_step = captured(self._forward_backward)
        self._run_clip_and_step = captured(self._clip_and_step)
        self._run_whole_update = captured(self._whole_update)
        self._called: set[str] = set()
        self._dropout_key = (0, 0)  # update and micro-step
        # On the device until they are read: an update never waits for the host.
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []

    # --- an update ---

    def update(self, number: int, first_sequence: int) -> None:
        """Does update `number` (from 0) on the sequences from `first_sequence` on.

        Its micro-batches are split over the ranks: each rank runs `micro_steps` of them, one after another.
        """
        lr = learning_rate(self.config, number)
        for optimizer in self.optimizers:
            optimizer.set_learning_rate(lr)
        self.model.train()
        update = torch.full((), number, dtype=torch.int64, device=self.execution.device)
        if self._is_one_micro_batch:
            batch = self._next_micro_batch(number, first_sequence, 0)
            loss, norm = self._run_or_capture(self._run_whole_update, update, *batch)
            loss = loss.clone()  # a CUDA graph overwrites its outputs
        else:
            losses = []
            for step in range(self._batch_plan.micro_steps):
                batch = self._next_micro_batch(number, first_sequence, step)
                is_last = step == self._batch_plan.micro_steps - 1
                if self.execution.shard:  # every micro-batch all-gathers weights; the last reduces gradients
                    self.model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
                elif is_last and not (self.execution.graph or self.is_first_call("update")):
                    # A graph's replay calls no hooks. The first call may fail on one rank, which repeats it.
                    self._group.start_all_reduce_in_backward()
                with self._group.waiting_for_ranks() if self.execution.shard else nullcontext():
                    losses.append(self._run_or_capture(self._run_micro_step, *batch)[0].clone())
            loss = torch.stack(losses).mean()
            self._group.all_reduce_gradients(loss)
            (norm,) = self._run_or_capture(self._run_clip_and_step, update, loss)
        self._losses.append(loss)
        self._norms.append(norm.clone())

    def _next_micro_batch(self, number: int, first_sequence: int, step: int) -> tuple[Tensor, ...]:
        """Inputs, targets and, if not 1, the weight of the loss of this rank's micro-step. Seeds dropout."""
        plan = self._batch_plan
        first_micro_step = self._group.rank * plan.micro_steps
        first_own = first_sequence + first_micro_step * plan.batch_size
        start = first_own + step * plan.batch_size
        is_last = step == plan.micro_steps - 1
        with self._ledger.phase("data"):
            next_start = first_own + plan.sequences if is_last else start + plan.batch_size
            batch = self._loader.micro_batch(start, next_start)
            weight = self._loader.micro_batch_weight(start, first_sequence)
        self._dropout_key = (number, first_micro_step + step)
        self._seed_dropout()
        return *batch, *weight

    def _seed_dropout(self) -> None:
        """Masks are a function of (seed, update, micro-step): a resumed run draws the same ones."""
        if self.config.dropout:
            sequence = np.random.SeedSequence([self.config.seed, *self._dropout_key])
            torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))

    def _whole_update(
        self, number: Tensor, tokens: Tensor, targets: Tensor, *weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Forward, backward and optimizer step. As one CUDA graph, gradients need no memory of their own."""
        (loss,) = self._forward_backward(tokens, targets, *weight)
        (norm,) = self._clip_and_step(number, loss)
        return loss, norm

    def _micro_step(self, tokens: Tensor, targets: Tensor, weight: Tensor | None = None) -> tuple[Tensor]:
        """Forward and backward; gradients accumulate. `weight`: of this loss in the update, if not 1."""
        with self.execution.autocast():
            loss: Tensor = self.model(tokens, targets)
        if weight is not None:
            loss = loss * weight
        scaled = loss / self._batch_plan.micro_steps
        if self.scaler.is_enabled():
            # A scaler skips an update only because of its gradients, so a bad loss has to reach them.
            scaled = scaled * self.finite_check.nan_factor
        torch.autograd.backward(self.scaler.scale(scaled))
        return (loss.detach(),)

    def _clip_and_step(self, number: Tensor, loss: Tensor) -> tuple[Tensor]:
        """Clips the gradients, checks that all is finite, steps the optimizers. Returns the gradient norm."""
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)  # type: ignore[arg-type]
        parameters = self.model.parameters()
        gradients = [local_shard(parameter.grad) for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.execution.shard:
            norm = self._group.all_reduce_norm(norm)
        if self.config.grad_clip:
            # As torch's clip_grads_with_norm_, which takes whole parameters and not their local shards.
            factor = (self.config.grad_clip / (norm + 1e-6)).clamp(max=1.0)
            if self.execution.device.type == "cuda":  # by the optimizers, without another pass over memory
                for optimizer in self.optimizers:
                    optimizer.grad_scale = 1 / factor
            else:
                torch._foreach_mul_(gradients, factor)
        if self.scaler.is_enabled():
            # In float16 an infinite gradient is routine: all ranks skip that update and lower the scale.
            self.finite_check.check(number, loss)
            skip = (~norm.isfinite()).float()
        else:
            self.finite_check.check(number, loss, norm)
            skip = self.finite_check.found_nonfinite
        on_mps = self.execution.device.type == "mps"  # its kernel takes no found_inf: the host reads `skip`
        if not (on_mps and skip):
            for optimizer in self.optimizers:
                optimizer.found_inf = None if on_mps else skip
                optimizer.step()
        self.scaler.update()
        # A CUDA graph of micro-steps needs the gradients to stay at their addresses.
        keeps_gradients = self.execution.graph and not self._is_one_micro_batch
        self.model.zero_grad(set_to_none=not keeps_gradients)
        return (norm,)

    # --- what the loop reads ---

    def take_losses_and_norms(self) -> tuple[list[float], list[float]]:
        """Loss and gradient norm of every update since the last call. Waits for the device."""
        self.execution.synchronize()
        results = [torch.stack(values).tolist() if values else [] for values in (self._losses, self._norms)]
        self._losses, self._norms = [], []
        return results[0], results[1]

    def first_bad_update(self, done: int) -> int | None:
        """The first of `done` updates with a non-finite loss or gradient. Waits for the device.

        In float16: a scale below 1 was halved many times, because no gradient was finite for long.
        """
        if self.scaler.is_enabled() and self.scaler.get_scale() < 1:
            return done - 1
        return self.finite_check.first_bad_update()

    # --- evaluation ---

    def token_losses(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Loss per token (B, T), without gradients."""
        self.model.eval()

        def forward() -> Tensor:
            with torch.no_grad(), self.execution.autocast():
                return self.model(tokens, targets, "none")  # type: ignore[no-any-return]

        with self._group.waiting_for_ranks() if self.execution.shard else nullcontext():
            return self._call_with_fallback("token_losses", forward)

    def reshard(self) -> None:
        """After evaluating a sharded model: frees the gathered weights, each rank keeps its shard."""
        if self.execution.shard:
            self.model.reshard()  # type: ignore[operator]

    # --- first calls: compiled code, kernels and CUDA graphs are built there, and may fail ---

    def is_first_call(self, what: str) -> bool:
        """Whether `update` or `token_losses` was not called yet: the first call compiles and warms up."""
        return what not in self._called

    def _run_or_capture(self, work: Work, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Calls `work`, after capturing it as a CUDA graph if that is due: capturing counts as compiling."""
        if isinstance(work, CudaGraphRunner) and work.will_capture_next:
            with self._ledger.phase("compile"):
                work.capture(*inputs)
                if self.model.activation_checkpointing:
                    gc.collect()  # its reference cycles would keep the activations of the capture
            if work.capture_error:
                self._own_fallbacks["graph"] = error_type_and_message(work.capture_error)
            self._sync_fallbacks()
        return work(*inputs)

    def _call_with_fallback(self, what: str, function: Callable[..., T], *inputs: Tensor) -> T:
        """Compiled code is built at its first call, and may fail there. Then the run continues without it."""
        if self._kernel_build is not None:
            self._kernel_build.wait()
            self._kernel_build = None
        try:
            result = function(*inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if what in self._called or not (self.model.backend.kernels or self.model.is_compiled):
                raise
            broken = "kernels" if self.model.backend.kernels else "compile"
            message = error_type_and_message(error)
            self._own_fallbacks[broken] = message
            if self.execution.shard:
                flag = "--kernels=plain" if broken == "kernels" else "--compile=off"
                raise UserError(
                    f"rank {self._group.rank} could not build code for the model ({message}), and with "
                    f"--shard one rank cannot repeat its part alone; try {flag}"
                ) from error
            self._disable_compiled_code()
            self.model.zero_grad(set_to_none=True)  # left behind by the failed call
            self._seed_dropout()
            result = function(*inputs)
        if what not in self._called:
            self._called.add(what)
            self._sync_fallbacks()
        return result

    def _disable_compiled_code(self) -> None:
        self.model.backend.kernels = self.model.backend.float8 = False
        self.model.set_compiled(False)

    def _sync_fallbacks(self) -> None:
        """Collective: all ranks come here at the same call. Kernels and compiled code that fail on one rank
        are disabled on all. A CUDA graph is not: it computes the same as the code it captured."""
        fallbacks_by_rank = self._group.all_gather_object(self._own_fallbacks)
        for name in ("kernels", "compile", "graph"):
            if ranks := [rank for rank, fallbacks in enumerate(fallbacks_by_rank) if name in fallbacks]:
                prefix = f"rank {', '.join(map(str, ranks))}: " if self._group.world_size > 1 else ""
                self.fallbacks.setdefault(name, f"{prefix}{fallbacks_by_rank[ranks[0]][name]}")
        if "kernels" in self.fallbacks or "compile" in self.fallbacks:
            self._disable_compiled_code()
