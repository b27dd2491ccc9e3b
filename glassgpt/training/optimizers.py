"""Optimizers, and how their state is named: after the parameter it belongs to, never after a position.

They are not subclasses of torch's, whose first use imports the whole compiler: seconds of every start, for
nothing. AdamW's arithmetic is torch's own fused kernel all the same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT
from glassgpt.training.distributed.fsdp import gather_full_tensor, is_dtensor, local_shard, shard_like


class Optimizer(ABC):
    """Groups of parameters, each with its rate `lr`, `times` the schedule's; and what it remembers of each.

    `found_inf` is a tensor on the device: where it is 1, a step changes nothing.
    """

    state_names: tuple[str, ...]  # names of what it keeps of each parameter

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        self.param_groups = [group for group in groups if group["params"]]
        device = local_shard(self.param_groups[0]["params"][0]).device
        for group in self.param_groups:
            # Set before every update. On a CUDA card it lies there: a recorded update reads it anew.
            group["lr"] = torch.zeros((), device=device) if device.type == "cuda" else 0.0
        self.state: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)
        self.found_inf: Tensor | None = None

    @abstractmethod
    def step(self) -> None:
        """Moves the parameters by their gradients."""

    def set_learning_rate(self, rate: float) -> None:
        """`rate` is the schedule's; groups with a rate of their own follow it in proportion."""
        for group in self.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * group["times"])
            else:
                group["lr"] = rate * group["times"]


def make_optimizers(model: GPT, config: TrainConfig, dtype: torch.dtype) -> list[Optimizer]:
    """AdamW for everything; or Muon for the blocks' matrices, in `dtype`, and AdamW for the rest."""
    if config.optimizer == "adamw":
        return [AdamW(model.parameters(), (), config)]
    matrices = {name: matrix for name, matrix in model.transformer.h.named_parameters() if matrix.dim() == 2}
    taken = {id(matrix) for matrix in matrices.values()}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    embedding = [] if config.tie_embeddings else [model.transformer.wte.weight]
    return [Muon(matrices, config, dtype), AdamW(rest, embedding, config)]


def describe_rates(config: TrainConfig) -> str:
    """Of Muon and what goes with it."""
    rates = f"matrices of the blocks at {config.matrix_lr:g}; AdamW for the rest at {config.learning_rate:g}"
    if config.tie_embeddings or config.embedding_lr is None:
        return rates
    return f"{rates}, embedding at {config.embedding_lr:g}"


# --- AdamW ---


class AdamW(Optimizer):
    """Matrices are decayed; gains and biases are not: pulling those to zero only hurts.

    An `embedding` has a rate of its own and no decay: a row learns only when its token comes along.
    """

    state_names = ("step", "exp_avg", "exp_avg_sq")

    def __init__(
        self, parameters: Iterable[nn.Parameter], embedding: Sequence[Tensor], config: TrainConfig
    ) -> None:
        apart = {id(table) for table in embedding}
        others = [parameter for parameter in parameters if id(parameter) not in apart]
        matrices = [parameter for parameter in others if parameter.dim() >= 2]
        vectors = [parameter for parameter in others if parameter.dim() < 2]
        rate = config.learning_rate
        embedding_times = (rate if config.embedding_lr is None else config.embedding_lr) / rate
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": config.weight_decay, "times": 1.0},
            {"params": vectors, "weight_decay": 0.0, "times": 1.0},
            {"params": list(embedding), "weight_decay": 0.0, "times": embedding_times},
        ]
        super().__init__(groups)
        self._betas = config.beta1, config.beta2

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            states = [self._state_of(parameter) for parameter in parameters]
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1.0)
            torch._fused_adamw_(
                [local_shard(parameter) for parameter in parameters],
                [local_shard(_gradient(parameter)) for parameter in parameters],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                steps,
                lr=group["lr"],
                beta1=self._betas[0],
                beta2=self._betas[1],
                weight_decay=group["weight_decay"],
                eps=1e-8,
                amsgrad=False,
                maximize=False,
                grad_scale=None,
                found_inf=self.found_inf,
            )
            if self.found_inf is not None:  # one that was skipped does not count
                torch._foreach_sub_(steps, [self.found_inf] * len(steps))

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            own = local_shard(parameter)
            state["step"] = torch.zeros((), device=own.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(own), torch.zeros_like(own)
        return state


# --- Muon ---


class Muon(Optimizer):
    """Moves a matrix by its momentum made orthogonal: all directions of the change are equally large.

    Adam scales each number by itself; a matrix's gradient is dominated by few directions all the same, and
    the rare ones learn slowly. (Jordan et al., 2024.)
    """

    state_names = ("momentum",)

    def __init__(self, matrices: Mapping[str, nn.Parameter], config: TrainConfig, dtype: torch.dtype) -> None:
        self._momentum, self._decay = config.muon_momentum, config.weight_decay
        self._steps, self._dtype = config.muon_steps, dtype
        # Queries, keys and values share a matrix but are three maps, each with directions of its own.
        threes = [matrix for name, matrix in matrices.items() if name.endswith("c_attn.weight")]
        ones = [matrix for name, matrix in matrices.items() if not name.endswith("c_attn.weight")]
        times = config.matrix_lr / config.learning_rate
        groups = [{"params": threes, "maps": 3, "times": times}, {"params": ones, "maps": 1, "times": times}]
        super().__init__(groups)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[nn.Parameter]] = {}
            for matrix in group["params"]:
                alike.setdefault((matrix.shape[0] // group["maps"], matrix.shape[1]), []).append(matrix)
            for shape, matrices in alike.items():
                self._step_same_shape(matrices, shape, group["lr"])

    def _step_same_shape(
        self, matrices: list[nn.Parameter], shape: tuple[int, ...], rate: float | Tensor
    ) -> None:
        """Matrices of one shape at once: few large products instead of many small ones.

        Of a matrix that is spread over processes each keeps the momentum of its rows; made orthogonal it is
        the whole, by everybody.
        """
        momenta = [self._momentum_of(matrix) for matrix in matrices]
        gradients = torch.stack([local_shard(_gradient(matrix)) for matrix in matrices])
        news: float | Tensor = 1 - self._momentum
        if self.found_inf is not None:
            gradients.masked_fill_(self.found_inf > 0, 0.0)
            news, rate = news * (1 - self.found_inf), rate * (1 - self.found_inf)
        averages = torch.stack(momenta).lerp_(gradients, news)
        torch._foreach_copy_(momenta, averages.unbind())
        ahead = gradients.lerp_(averages, self._momentum)  # Nesterov's: as if the next average were known
        if is_dtensor(matrices[0]):
            parts = zip(ahead, matrices, strict=True)
            ahead = torch.stack([gather_full_tensor(part, matrix) for part, matrix in parts])
        changes = orthogonalize(ahead.view(-1, *shape), self._steps, self._dtype).view_as(ahead)
        length = rate * math.sqrt(max(1.0, shape[0] / shape[1]))
        for matrix, change in zip(matrices, changes, strict=True):
            own = local_shard(matrix)
            if self._decay:
                own.mul_(1 - rate * self._decay)
            own.sub_(local_shard(shard_like(change, matrix)) * length)

    def _momentum_of(self, matrix: nn.Parameter) -> Tensor:
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(local_shard(matrix))
        return state["momentum"]


def _gradient(matrix: nn.Parameter) -> Tensor:
    return torch.zeros_like(matrix) if matrix.grad is None else matrix.grad


# Each row is a polynomial a x + b x^3 + c x^5 that takes singular values nearer to 1; together they take all
# between 0.001 and 1 close to it. (Amsel et al., 2025: "The Polar Express", 5 steps, with a safety margin.)
_POLAR_EXPRESS_COEFFICIENTS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def orthogonalize(matrices: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Matrices (N, m, n) with their singular vectors, and singular values near 1; products in `dtype`."""
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices / (1.02 * matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(dtype)
    x = x.mT if is_tall else x  # the small side squared
    for a, b, c in _POLAR_EXPRESS_COEFFICIENTS[:steps]:
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    made: Tensor = x.mT if is_tall else x
    return made


# --- their state ---


def optimizer_tensors(model: GPT, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """The optimizers' state as tensors called `PARAMETER:NAME`, e.g. `transformer.wte.weight:exp_avg`."""
    return {
        f"{name}:{key}": value
        for name, parameter in model.named_parameters()
        for key, value in _optimizer_of(optimizers, parameter).state[parameter].items()
    }


def load_optimizer_state(
    model: GPT, optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor]
) -> list[str]:
    """Puts the state back, each tensor where it came from; a tensor without a home is an error.

    What another optimizer remembered is of no use to this one; says so.
    """
    parameters, useless = dict(model.named_parameters()), set()
    for label, tensor in tensors.items():
        name, _, key = label.rpartition(":")
        if name not in parameters:
            raise UserError(f"the checkpoint has optimizer state for {name}, which this model does not have")
        optimizer = _optimizer_of(optimizers, parameters[name])
        if key in optimizer.state_names:
            home = parameters[name]
            part = local_shard(shard_like(tensor, home)) if tensor.shape == home.shape else tensor
            # Also AdamW's step count: fused kernels keep it beside the parameter.
            optimizer.state[home][key] = part.to(home.device)
        else:
            useless.add(name)
    if not useless:
        return []
    return [f"the optimizer is another now: it begins without a memory of {len(useless)} parameters"]


def _optimizer_of(optimizers: Sequence[Optimizer], parameter: nn.Parameter) -> Optimizer:
    for optimizer in optimizers:
        if any(parameter is one for group in optimizer.param_groups for one in group["params"]):
            return optimizer
    raise AssertionError("every parameter has an optimizer")
