"""What other trainers call our settings, and what to write here instead."""

from __future__ import annotations

# Names of other trainers, and names that sound right. They are refused, with ours.
_ALIASES_BY_SETTING = {
    "n_layer": ("num_layers", "n_layers", "layers", "depth"),
    "n_head": ("num_heads", "n_heads", "heads"),
    "n_embd": ("d_model", "hidden_size", "hidden_dim", "embed_dim", "embd", "width"),
    "block_size": ("context_length", "context", "seq_len", "seq_length", "max_seq_len", "sequence_length"),
    "batch_size": ("micro_batch_size", "device_batch_size", "bs"),
    "batch_tokens": ("total_batch_size", "global_batch_size"),
    "gradient_accumulation_steps": ("accumulate", "grad_accum", "grad_accumulation_steps"),
    "learning_rate": ("lr", "max_lr"),
    "max_iters": ("steps", "num_steps", "max_steps", "train_steps", "num_iters", "num_iterations", "iters"),
    "weight_decay": ("wd",),
    "grad_clip": ("clip", "max_grad_norm", "clip_grad_norm"),
    "schedule": ("lr_schedule", "lr_scheduler", "scheduler"),
    "warmup_iters": ("warmup", "warmup_steps"),
    "eval_interval": ("eval_every", "eval_steps", "val_every"),
    "patience": ("early_stopping",),
    "checkpoint_interval": ("save_interval", "save_every", "save_steps"),
    "keep_checkpoints": ("save_total_limit",),
    "log_interval": ("log_every", "log_steps", "logging_steps"),
    "out_dir": ("output_dir", "outdir", "run_dir"),
    "dataset": ("data",),
    "init_from": ("init", "pretrained"),
    "activation_checkpointing": ("gradient_checkpointing", "grad_checkpointing"),
    "dtype": ("amp", "precision", "mixed_precision"),
    "dtype=float16": ("fp16", "half"),
    "dtype=bfloat16": ("bf16",),
    "device=cuda": ("gpu", "cuda"),
    "device=cpu": ("cpu", "no_cuda"),
}

RESUME_HINT = (
    "--init_from=resume --out_dir=RUN goes on with a run; "
    "--init_from=RUN@2000 begins a new one from its checkpoint at update 2000"
)
EPOCHS_HINT = "--max_iters counts updates: epochs x tokens in the training split / tokens per update"
_SAMPLING_HINT = "it belongs to `glass sample`"

_RESUME_ALIASES = (
    "resume", "resume_from", "resume_from_checkpoint", "ckpt", "checkpoint", "load", "load_from",
    "load_checkpoint", "continue", "restore",
)  # fmt: skip

TRAIN_HINTS = (
    {other: f"did you mean --{name}?" for name, others in _ALIASES_BY_SETTING.items() for other in others}
    | dict.fromkeys(_RESUME_ALIASES, RESUME_HINT)
    | dict.fromkeys(("epochs", "num_epochs", "max_epochs", "num_train_epochs"), EPOCHS_HINT)
    | dict.fromkeys(("start", "num_samples", "max_new_tokens", "temperature", "top_k"), _SAMPLING_HINT)
)
