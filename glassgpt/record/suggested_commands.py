"""What the advice of a finding says to change, as data: settings to set, or a command to run.

    suggested_commands([say("overfitting.advice.set_max_iters", best_iteration=1750, ...)])
    # [{"settings": {"max_iters": 1750, "lr_decay_iters": 1750}}]

Each entry is a suggestion by itself; the settings of one entry belong together. Advice without a number or
a command, such as "more text", has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from glassgpt.i18n import Message, message_values

# By the key of the message. "{name}" stands for the message's value of that name, unrounded.
_SETTINGS: Mapping[str, tuple[Mapping[str, object], ...]] = {
    "best-overwritten.advice": ({"always_save_checkpoint": False},),
    "clock-before-sync.advice": ({"log_interval": 1},),
    "context-unused.advice": ({"block_size": "{useful}"},),
    "divergence.advice.lower_known_lr": ({"learning_rate": "{new_peak_lr}"},),
    "divergence.advice.lower_lr_longer_warmup": (
        {"learning_rate": "{new_peak_lr}", "warmup_iters": "{new_warmup_iters}"},
    ),
    "eval-noise.advice.raise_eval_iters": ({"eval_iters": "{enough_eval_iters}"},),
    "eval-spikes.advice.lower_batches": ({"{batches_setting}": "{new_batches}"},),
    "eval-spikes.advice.raise_interval": ({"{interval_setting}": "{new_interval}"},),
    "eval-spikes.advice.raise_long_run": ({"{interval_setting}": "{new_interval}"},),
    "loss-nan.advice.lower_known_lr": ({"learning_rate": "{new_peak_lr}"},),
    "lr-schedule-mismatch.advice.decay_or_stop": (
        {"lr_decay_iters": "{end_iteration}"},
        {"max_iters": "{decay_iterations}"},
    ),
    "lr-schedule-mismatch.advice.decay_to_end": ({"lr_decay_iters": "{end_iteration}"},),
    "lr-schedule-mismatch.advice.shorter_warmup": (
        {"warmup_iters": "{new_warmup_iters}", "lr_decay_iters": "{end_iteration}"},
    ),
    "never-checkpointed.advice": ({"eval_interval": "{new_eval_interval}"},),
    "oom.advice.fewer_layers": ({"n_layer": "{new_n_layer}", "batch_size": 1},),
    "oom.advice.fitting_batch": (
        {"batch_size": "{new_batch_size}", "gradient_accumulation_steps": "{new_accumulation_steps}"},
    ),
    "overfitting.advice.keep_best_weights": ({"always_save_checkpoint": False},),
    "overfitting.advice.set_max_iters": (
        {"max_iters": "{best_iteration}", "lr_decay_iters": "{best_iteration}"},
    ),
    "rate-jump.advice": ({"learning_rate": "{last_lr}", "decay_lr": False},),
    "skipped-steps.advice": ({"dtype": "bfloat16"},),
}
# Values of a message that are a command, or flags for the command that started the run.
_COMMAND_VALUES = ("command", "flag")


def suggested_commands(advice: Iterable[Message]) -> list[dict[str, object]]:
    suggestions: list[dict[str, object]] = []
    for message in advice:
        values = message_values([message])
        for settings in _SETTINGS.get(message.key, ()):
            filled = {str(_fill(name, values)): _fill(value, values) for name, value in settings.items()}
            suggestions.append({"settings": filled})
        suggestions += [{"command": values[name]} for name in _COMMAND_VALUES if values.get(name)]
    return suggestions


def _fill(part: object, values: Mapping[str, object]) -> object:
    if isinstance(part, str) and part.startswith("{"):
        return values[part[1:-1]]
    return part
