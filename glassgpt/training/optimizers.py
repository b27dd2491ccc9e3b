"""AdamW and Muon. Their state is named after the parameter it belongs to, never after a position.

They are not subclasses of torch.optim.Optimizer, whose first use imports torch's compiler and takes seconds
of every start. AdamW's arithmetic is torch's fused kernel all the same.
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
    """Parameter groups, each with its learning rate `lr` = `lr_scale` times the schedule's, and state per
    parameter.

    `found_inf` is a tensor on the device: where it is 1, a step changes nothing. `grad_scale` too, for
    clipping: gradients are divided by it.
    """

    state_names: tuple[str, ...]  # of the tensors in the state of each parameter

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        self.param_groups = [group for group in groups if group["params"]]
        device = local_shard(self.param_groups[0]["params"][0]).device
        for group in self.param_groups:
            # Set before every update. On CUDA a tensor: a replayed CUDA graph reads its current value.
            group["lr"] = torch.zeros((), device=device) if device.type == "cuda" else 0.0
        self.state: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)
        self.found_inf: Tensor | None = None
        self.grad_scale: Tensor | None = None

    @abstractmethod
    def step(self) -> None:
        """Updates the parameters from their gradients."""

    def set_learning_rate(self, rate: float) -> None:
        """`rate`: of the schedule. A group's own rate is proportional to it."""
        for group in self.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * group["lr_scale"])
            else:
                group["lr"] = rate * group["lr_scale"]


def make_optimizers(model: GPT, config: TrainConfig, dtype: torch.dtype) -> list[Optimizer]:
    """AdamW for everything; or Muon, computed in `dtype`, for the blocks' matrices and AdamW for the rest."""
    if config.optimizer == "adamw":
        return [AdamW(model.parameters(), (), config)]
    matrices = {name: matrix for name, matrix in model.transformer.h.named_parameters() if matrix.dim() == 2}
    matrix_ids = {id(matrix) for matrix in matrices.values()}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in matrix_ids]
    embedding = [] if config.tie_embeddings else [model.transformer.wte.weight]
    return [Muon(matrices, config, dtype), AdamW(rest, embedding, config)]


# --- AdamW ---


class AdamW(Optimizer):
    """Weight decay for matrices only, not for gains and biases.

    An `embedding` has its own learning rate and no decay: a row gets gradients only when its token occurs.
    """

    state_names = ("step", "exp_avg", "exp_avg_sq")

    def __init__(
        self, parameters: Iterable[nn.Parameter], embedding: Sequence[Tensor], config: TrainConfig
    ) -> None:
        embedding_ids = {id(table) for table in embedding}
        others = [parameter for parameter in parameters if id(parameter) not in embedding_ids]
        matrices = [parameter for parameter in others if parameter.dim() >= 2]
        vectors = [parameter for parameter in others if parameter.dim() < 2]
        rate = config.learning_rate
        embedding_lr_scale = (rate if config.embedding_lr is None else config.embedding_lr) / rate
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": config.weight_decay, "lr_scale": 1.0},
            {"params": vectors, "weight_decay": 0.0, "lr_scale": 1.0},
            {"params": list(embedding), "weight_decay": 0.0, "lr_scale": embedding_lr_scale},
        ]
        super().__init__(groups)
        self._betas = config.beta1, config.beta2

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            states = [self.state[parameter] for parameter in parameters]
            for parameter, state in zip(parameters, states, strict=True):
                if not state:
                    local = local_shard(parameter)
                    state["step"] = torch.zeros((), device=local.device)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(local), torch.zeros_like(local)
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1.0)
            torch._fused_adamw_(
                [local_shard(parameter) for parameter in parameters],
                [local_shard(parameter.grad) for parameter in parameters],
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
                grad_scale=self.grad_scale,
                found_inf=self.found_inf,
            )
            if self.found_inf is not None:  # a skipped step does not count
                torch._foreach_sub_(steps, [self.found_inf] * len(steps))


# --- Muon ---


class Muon(Optimizer):
    """Updates a matrix by its orthogonalized momentum: all singular values of the change are about 1.

    Adam scales each number by itself, but a matrix's gradient is still dominated by few directions, and the
    rare ones learn slowly. (Jordan et al., 2024.)
    """

    state_names = ("momentum",)

    def __init__(self, matrices: Mapping[str, nn.Parameter], config: TrainConfig, dtype: torch.dtype) -> None:
        self._momentum, self._weight_decay = config.muon_momentum, config.weight_decay
        self._steps, self._dtype = config.muon_steps, dtype
        # c_attn stacks three matrices, for queries, keys and values. Each is orthogonalized by itself.
        qkv = [matrix for name, matrix in matrices.items() if name.endswith("c_attn.weight")]
        others = [matrix for name, matrix in matrices.items() if not name.endswith("c_attn.weight")]
        lr_scale = config.matrix_lr / config.learning_rate
        groups = [
            {"params": qkv, "n_splits": 3, "lr_scale": lr_scale},
            {"params": others, "n_splits": 1, "lr_scale": lr_scale},
        ]
        super().__init__(groups)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[nn.Parameter]] = {}
            for matrix in group["params"]:
                rows, columns = matrix.shape
                by_shape.setdefault((rows // group["n_splits"], columns), []).append(matrix)
            for shape, matrices in by_shape.items():
                self._step_same_shape(matrices, shape, group["lr"])

    def _step_same_shape(
        self, matrices: list[nn.Parameter], shape: tuple[int, ...], rate: float | Tensor
    ) -> None:
        """Matrices of one shape at once: few large products instead of many small ones.

        Of a sharded matrix each rank keeps the momentum of its rows. Every rank orthogonalizes the whole.
        """
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(local_shard(matrix))
        momenta = [self.state[matrix]["momentum"] for matrix in matrices]
        full_gradients = [
            torch.zeros_like(matrix) if matrix.grad is None else matrix.grad for matrix in matrices
        ]
        gradients = torch.stack([local_shard(gradient) for gradient in full_gradients])
        if self.grad_scale is not None:
            gradients.div_(self.grad_scale)
        gradient_weight: float | Tensor = 1 - self._momentum
        if self.found_inf is not None:
            # Where it is 1, the average and the weights keep their values: the gradient weighs 0, and so does
            # the rate. Since 0 x NaN is NaN, the gradient itself becomes 0, too.
            gradients.masked_fill_(self.found_inf > 0, 0.0)
            gradient_weight, rate = gradient_weight * (1 - self.found_inf), rate * (1 - self.found_inf)
        averages = torch.stack(momenta).lerp_(gradients, gradient_weight)
        torch._foreach_copy_(momenta, averages.unbind())
        nesterov = gradients.lerp_(averages, self._momentum)
        if is_dtensor(matrices[0]):
            shards = zip(nesterov, matrices, strict=True)
            nesterov = torch.stack([gather_full_tensor(part, matrix) for part, matrix in shards])
        changes = orthogonalize(nesterov.view(-1, *shape), self._steps, self._dtype).view_as(nesterov)
        step_size = rate * math.sqrt(max(1.0, shape[0] / shape[1]))
        for matrix, change in zip(matrices, changes, strict=True):
            local = local_shard(matrix)
            if self._weight_decay:
                local.mul_(1 - rate * self._weight_decay)
            local.sub_(local_shard(shard_like(change, matrix)) * step_size)


# Each row is a polynomial a x + b x^3 + c x^5 that moves singular values towards 1. Together they move all
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
    x = x.mT if is_tall else x  # the product x x^T is then the smaller one
    for a, b, c in _POLAR_EXPRESS_COEFFICIENTS[:steps]:
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    orthogonal: Tensor = x.mT if is_tall else x
    return orthogonal


# --- optimizer state in checkpoints ---


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
    """Restores the state; a tensor of a parameter that the model does not have is an error.

    State of another optimizer cannot be used. Returns a warning about that.
    """
    parameters, unused = dict(model.named_parameters()), set()
    for label, tensor in tensors.items():
        name, _, key = label.rpartition(":")
        if name not in parameters:
            raise UserError(f"the checkpoint has optimizer state for {name}, which this model does not have")
        optimizer = _optimizer_of(optimizers, parameters[name])
        if key in optimizer.state_names:
            parameter = parameters[name]
            part = local_shard(shard_like(tensor, parameter)) if tensor.shape == parameter.shape else tensor
            # Also AdamW's step count: fused kernels need it on the parameter's device.
            optimizer.state[parameter][key] = part.to(parameter.device)
        else:
            unused.add(name)
    if not unused:
        return []
    return [f"the optimizer has changed: it starts without state for {len(unused)} parameters"]


def _optimizer_of(optimizers: Sequence[Optimizer], parameter: nn.Parameter) -> Optimizer:
    for optimizer in optimizers:
        if any(parameter is one for group in optimizer.param_groups for one in group["params"]):
            return optimizer
    raise AssertionError("every parameter has an optimizer")
