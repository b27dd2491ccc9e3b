"""Optimizers, and how their state is named: after the parameter it belongs to, never after a position."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT


def make_optimizer(model: GPT, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW. Matrices are decayed; gains and biases are not: pulling those to zero only hurts."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    # Fused: one kernel for all tensors, and it can skip an update on the device (see Finite in learner.py).
    # Apple's fused kernel cannot skip.
    fused = matrices[0].device.type != "mps"
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=fused)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as tensors called `PARAMETER:NAME`, e.g. `transformer.wte.weight:exp_avg`."""
    return {
        f"{name}:{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def load_optimizer(model: GPT, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Puts the state back, each tensor where it came from; a tensor without a home is an error."""
    parameters = dict(model.named_parameters())
    for label, tensor in tensors.items():
        name, _, key = label.rpartition(":")
        if name not in parameters:
            raise UserError(f"the checkpoint has optimizer state for {name}, which this model does not have")
        # Also AdamW's step count: fused kernels keep it beside the parameter.
        optimizer.state[parameters[name]][key] = tensor.to(parameters[name].device)
