"""The presets: that each resolves everywhere, and that nanoGPT's have nanoGPT's values."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from glassgpt.recipe import build_config, find_recipe, preset_names
from glassgpt.validate import find_config_problems


def test_every_preset_resolves_on_every_device(subtests: pytest.Subtests) -> None:
    for name in preset_names():
        for device in ("cpu", "cuda", "mps", None):
            with subtests.test(f"{name} on {device}"):
                recipe = find_recipe(name)
                assert recipe.name == name
                assert recipe.about
                assert find_config_problems(build_config(recipe, {}, device)) == []


def test_the_presets_there_are() -> None:
    assert preset_names() == [
        "eval_gpt2",
        "eval_gpt2_large",
        "eval_gpt2_medium",
        "eval_gpt2_xl",
        "finetune_shakespeare",
        "fineweb_edu_12gb",
        "gpt2_124m",
        "gpt2_124m_fast",
        "quickstart",
        "shakespeare_char",
        "shakespeare_char_cpu",
        "shakespeare_char_cpu_fast",
        "shakespeare_char_fast",
    ]


NANOGPT: dict[str, dict[str, Any]] = {
    # nanoGPT 3adf61e: config/train_shakespeare_char.py
    "shakespeare_char": {
        "dataset": "shakespeare_char",
        "eval_interval": 250,
        "log_interval": 10,
        "always_save_checkpoint": False,
        "gradient_accumulation_steps": 1,
        "batch_size": 64,
        "block_size": 256,
        "n_layer": 6,
        "n_head": 6,
        "n_embd": 384,
        "dropout": 0.2,
        "bias": False,
        "learning_rate": 1e-3,
        "max_iters": 5000,
        "lr_decay_iters": 5000,
        "min_lr": 1e-4,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay": 0.1,
        "grad_clip": 1.0,
        "warmup_iters": 100,
    },
    # README.md, "I only have a macbook"
    "shakespeare_char_cpu": {
        "dataset": "shakespeare_char",
        "device": "cpu",
        "compile": "off",
        "eval_iters": 20,
        "eval_tokens": None,
        "block_size": 64,
        "batch_size": 12,
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 128,
        "max_iters": 2000,
        "lr_decay_iters": 2000,
        "dropout": 0.0,
        "learning_rate": 1e-3,
        "min_lr": 1e-4,
        "beta2": 0.99,
        "warmup_iters": 100,
        "gradient_accumulation_steps": 1,
    },
    # train.py's defaults and config/train_gpt2.py; 40 micro-batches over 8 GPUs
    "gpt2_124m": {
        "dataset": "openwebtext",
        "batch_size": 12,
        "block_size": 1024,
        "gradient_accumulation_steps": 40,
        "n_layer": 12,
        "n_head": 12,
        "n_embd": 768,
        "dropout": 0.0,
        "bias": False,
        "learning_rate": 6e-4,
        "min_lr": 6e-5,
        "max_iters": 600_000,
        "lr_decay_iters": 600_000,
        "warmup_iters": 2000,
        "weight_decay": 0.1,
        "beta1": 0.9,
        "beta2": 0.95,
        "grad_clip": 1.0,
        "eval_interval": 1000,
        "log_interval": 10,
    },
    # config/finetune_shakespeare.py; it leaves dropout to train.py
    "finetune_shakespeare": {
        "dataset": "shakespeare",
        "init_from": "gpt2-xl",
        "eval_interval": 5,
        "eval_iters": 40,
        "log_interval": 1,
        "always_save_checkpoint": False,
        "batch_size": 1,
        "gradient_accumulation_steps": 32,
        "block_size": 1024,
        "max_iters": 20,
        "learning_rate": 3e-5,
        "decay_lr": False,
        "dropout": 0.0,
        "weight_decay": 0.1,
        "beta2": 0.95,
    },
    # config/eval_gpt2.py and its sisters
    **{
        name: {
            "dataset": "openwebtext",
            "init_from": name.removeprefix("eval_").replace("_", "-"),
            "eval_only": True,
            "batch_size": 8,
            "block_size": 1024,
            "eval_iters": 500,
        }
        for name in ("eval_gpt2", "eval_gpt2_medium", "eval_gpt2_large", "eval_gpt2_xl")
    },
    # the same model with what a 12 GB card holds
    "fineweb_edu_12gb": {
        "batch_size": 8,
        "gradient_accumulation_steps": 64,
        "block_size": 1024,
        "learning_rate": 3e-4,
        "n_layer": 12,
        "n_head": 12,
        "n_embd": 768,
        "dropout": 0.0,
        "bias": False,
    },
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", sorted(NANOGPT))
def test_presets_have_nanogpts_values(name: str, device: str) -> None:
    config = dataclasses.asdict(build_config(find_recipe(name), {}, device))
    assert {key: config[key] for key in NANOGPT[name]} == NANOGPT[name]
    assert config["arch"] == "gpt2"
    assert config["schedule"] == "cosine"
