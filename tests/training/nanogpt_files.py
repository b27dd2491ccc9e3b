"""A ckpt.pt as nanoGPT writes it, with a real optimizer that has done some updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from glassgpt.model.gpt import GPT, GPTConfig

SHAPE = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 8, "bias": False, "dropout": 0.0}


def make_trained_model(vocab_size: int, **changes: Any) -> tuple[GPT, torch.optim.Optimizer]:
    """A model after three updates of plain torch, with nanoGPT's two groups: matrices, then the rest."""
    torch.manual_seed(5)
    model = GPT(GPTConfig(vocab_size=vocab_size, **SHAPE | changes))
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.99))
    for _ in range(3):
        tokens = torch.randint(vocab_size, (4, 9))
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def make_nanogpt_ckpt(vocab_size: int, prefix: str = "", **changes: Any) -> dict[str, Any]:
    model, optimizer = make_trained_model(vocab_size, **changes)
    arguments = SHAPE | changes | {"vocab_size": vocab_size}
    config = {
        "out_dir": "out-tiny", "eval_interval": 10, "log_interval": 1, "eval_iters": 5, "eval_only": False,
        "always_save_checkpoint": True, "init_from": "scratch", "wandb_log": False, "wandb_project": "owt",
        "wandb_run_name": "gpt2", "dataset": "tiny", "gradient_accumulation_steps": 2, "batch_size": 4,
        "block_size": arguments["block_size"], "n_layer": arguments["n_layer"], "n_head": arguments["n_head"],
        "n_embd": arguments["n_embd"], "dropout": 0.0, "bias": arguments["bias"], "learning_rate": 1e-2,
        "max_iters": 3, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99, "grad_clip": 1.0, "decay_lr": True,
        "warmup_iters": 1, "lr_decay_iters": 3, "min_lr": 1e-3, "backend": "nccl", "device": "cuda",
        "dtype": "float16", "compile": True,
    }  # fmt: skip
    return {
        "model": {prefix + name: tensor for name, tensor in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "model_args": arguments,
        "iter_num": 3,
        "best_val_loss": torch.tensor(2.5),
        "config": config,
    }


def write_nanogpt_ckpt(path: Path, vocab_size: int, prefix: str = "", **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(make_nanogpt_ckpt(vocab_size, prefix, **changes), path)
    return path
