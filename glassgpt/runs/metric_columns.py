"""Which column of a table of metrics means what, by its name: the one list of the names that people use.

    role_of("train/loss")                       # "loss"
    choose_columns({"step": 9, "loss": 9, "train_loss": 1})     # {"iteration": "step", "loss": "loss"}

A table is a CSV file, lines of JSON, a JSON document, or the tags of TensorBoard's event files. Names are
compared without case, and `/`, `.`, `-` and blanks count as `_`. A name of no list has no role: nothing is
guessed from the values of a column, but for two that are called `train` and `val`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

Role = Literal[
    "iteration",
    "epoch",
    "batch",
    "planned_iterations",
    "loss",
    "val_loss",
    "val_bpb",
    "lr",
    "grad_norm",
    "tokens_per_s",
    "it_per_s",
    "mfu",
    "tokens",
    "step_ms",
    "step_s",
    "step_time",
    "elapsed_s",
    "elapsed_ms",
    "run_s",
    "timestamp",
    "time",
    "eval_s",
    "epoch_s",
    "parameters",
    "reward",
    "split",
    "run",
]

# Of two columns with one role, the one that comes first here is taken; but see choose_columns.
NAMES: dict[Role, str] = {
    # `_step` counts the calls of wandb.log, and `step` may count within an epoch.
    "iteration": "global_step_max_steps train_global_step trainer_global_step global_step current_steps step "
    "iteration iter it "
    "iter_num num_updates update updates steps train_step train_steps train_iter num_steps batch_idx _step "
    "iters iterations itr i_iter opt_step optimizer_step iteratation 步 步数 迭代 迭代次数 스텝 ステップ",
    "epoch": "epoch train_epoch epochs epoch_num ep i_epoch 轮 轮次 轮数 에폭 エポック",
    "batch": "batch mini_batch minibatch batches",  # of the epoch
    "planned_iterations": "total_steps max_steps total_iterations max_iters max_iter max_iterations",
    # One step's loss before an epoch's mean.
    "loss": "train_loss_step loss_step train_step_loss train_batch_loss batch_loss loss train_loss "
    "training_loss loss_train loss_training train_lm_loss lm_loss train_ce_loss ce_loss "
    "train_loss_nats_per_byte train_loss_nats loss_nats "
    "train_crossentropyloss crossentropyloss train_cross_entropy train_cross_entropy_loss "
    "cross_entropy_loss cross_entropy loss_metrics_global_avg_loss train_nll_loss nll_loss "
    "avg_loss mean_loss train_loss_epoch loss_epoch epoch_loss train_epoch_loss total_loss "
    "xent nll ce bce cost train_cost training_cost 损失 训练损失 损失值 損失 손실",
    "val_loss": "val_loss valid_loss validation_loss eval_loss val_loss_epoch loss_val loss_valid "
    "loss_validation loss_eval val_lm_loss val_ce_loss eval_lm_loss eval_ce_loss val_nll_loss "
    "eval_c4_en_validation_crossentropyloss validation_metrics_loss dev_loss holdout_loss "
    "val_epoch_loss validation_epoch_loss val_loss_step 验证损失 検証損失 검증_손실 "
    "test_loss test_epoch_loss loss_test 测试损失",
    "val_bpb": "val_bpb valid_bpb validation_bpb eval_bpb",
    # A setting may stand beside what is logged: wandb exports both.
    "lr": "train_learning_rate train_lr lr learning_rate learn_rate learn_rate_train "
    "learning_rate_train lr_train optim_learning_rate_group0 lr_adamw lr_adam lr_sgd "
    "lr_adamw_pg1 lr_adam_pg1 optimizer_lr optim0_lr0 cur_lr current_lr last_lr lr_0 学习率",
    "grad_norm": "grad_norm gradient_norm train_grad_norm train_gradient_norm total_grad_norm "
    "optim_total_grad_norm grad_norm_total grad_2_0_norm_total gnorm train_gnorm global_grad_norm "
    "norm gradnorm g_norm",
    "tokens_per_s": "tokens_per_second tokens_per_sec tokens_per_s tok_per_sec tok_per_s tokens_s tokens_sec "
    "tok_s tok_sec throughput_tps tps train_tokens_per_second train_tokens_per_sec train_tok_per_sec "
    "train_tokens_per_s tokens_s_device tok_s_device tokens_s_gpu tok_s_gpu tokens_gpu_s tok_gpu_s "
    "tokens_device_s tok_device_s tokens_gpu_sec tokens_sec_gpu tokens_device_sec tok_gpu_sec",
    "it_per_s": "it_s its_s iter_s iters_s it_sec steps_s steps_per_second steps_per_sec steps_per_s "
    "it_per_s iter_per_s iters_per_sec",
    "mfu": "mfu train_mfu mfu_percent train_mfu_percent perf_mfu throughput_mfu",
    "tokens": "num_input_tokens_seen train_num_input_tokens_seen total_tokens tokens_seen total_tokens_seen "
    "n_tokens_seen num_tokens n_tokens tokens train_tokens train_num_tokens throughput_total_tokens "
    "tokens_total tokens_processed tokens_cum cum_tokens cumulative_tokens tokens_so_far",
    "step_ms": "step_ms step_time_ms time_ms iter_time_ms iteration_time_ms time_per_step_ms ms_per_step "
    "ms_per_iter dt_ms batch_time_ms elapsed_time_per_iteration_ms ms_step ms_iter ms_it ms_batch "
    "iter_dt_ms batch_dt_ms step_dt_ms",
    "step_s": "step_s step_time_s step_time_sec step_time_seconds iter_time_s iter_time_sec dt_s "
    "seconds_per_step sec_per_step sec_per_iter s_per_it s_per_step seconds_per_iteration "
    "time_metrics_end_to_end_s train_step_time_s seconds step_dt_s "
    "batch_time_s s_per_iter",
    "epoch_s": "epoch_time_s epoch_time_sec epoch_time_seconds epoch_s epoch_sec epoch_secs epoch_seconds "
    "epoch_duration_s epoch_duration_sec epoch_duration_seconds epoch_elapsed_s epoch_elapsed_sec "
    "epoch_runtime_s seconds_per_epoch sec_per_epoch s_per_epoch time_per_epoch_s",
    # Without their unit.
    "step_time": "step_time iter_time iteration_time time_per_step time_per_iteration batch_time dt train_dt "
    "train_step_time train_iter_time train_step_timing iteration_time_avg iter_dt step_dt batch_dt",
    "elapsed_s": "_runtime elapsed_time elapsed elapsed_s elapsed_sec elapsed_seconds time_elapsed runtime "
    "total_time total_time_s total_training_time wall_clock_s wall_clock_seconds wall_clock_sec wall_clock "
    "wall_cum_s cum_time_s wall_s wall_seconds relative_time_process relative_time_wall",
    "elapsed_ms": "elapsed_ms elapsed_time_ms total_time_ms train_time_ms",
    "run_s": "train_train_runtime train_runtime",  # of the whole run, which is done when it is logged
    "timestamp": "_timestamp timestamp ts wall_time walltime datetime",
    "time": "time took",  # of a step, since the start, or of the day: its values decide
    "eval_s": "eval_runtime val_time_s eval_time_s eval_s validation_time_s",
    "parameters": "n_params num_params n_parameters num_parameters number_of_parameters total_params "
    "total_parameters parameter_count param_count model_parameters model_params model_num_parameters",
    # Of reinforcement learning. verl's critic/rewards are its scores less a penalty. DPO's rewards/margins
    # are no rewards, and its loss is a cross-entropy.
    "reward": "reward mean_reward reward_mean rewards_mean critic_score_mean critic_rewards_mean avg_reward "
    "average_reward average_reward_score reward_score objective_rlhf_reward env_reward_mean train_reward",
    "split": "split phase subset mode",  # whose loss a row has: train, val, …
    "run": "run run_name run_id experiment experiment_name trial model model_name",  # which run's row it is
}
_RANKS: dict[str, tuple[Role, int]] = {
    name: (role, rank) for role, names in NAMES.items() for rank, name in enumerate(names.split())
}
_OTHER_RANK = 1000  # of a name that only ends like one of the above
PART_RANK = 2000  # of a loss that is not called just so: one of several, mostly
VAL_WORDS = {
    "val",
    "valid",
    "validation",
    "eval",
    "evaluation",
    "dev",
    "holdout",
    "heldout",
    "va",
    "cv",
    "test",
}
# A name with one of these before it is not of the value now.
OTHER_TIMES = {
    "best", "lowest", "highest", "min", "minimum", "max", "maximum", "target", "threshold", "previous",
    "prev",
    "last", "initial", "per", "warmup", "every", "peak", "expected",
}  # fmt: skip
# Parts of a loss, or what reinforcement learning calls one.
_PART_WORDS = {
    "aux", "auxiliary", "z", "kl", "value", "critic", "policy", "actor", "entropy", "reg", "regularization",
    "balance", "balancing", "router", "scale", "scaler", "delta", "std", "var", "min", "max", "best",
}  # fmt: skip
# A name of nothing but these is a loss: TensorBoard's Loss/train_batch and Loss/val_epoch.
_LOSS_WORDS = {
    "loss", "train", "training", "trn", "tr", "batch", "step", "iter", "epoch", "avg", "average", "mean",
    "total",
    "nll", "xent", "running", "ema", "smoothed", "smooth", "current", "final", "overall", "lm", "ce", "set",
    *VAL_WORDS,
}  # fmt: skip
_OF_SET = re.compile(rf"((?:{'|'.join(sorted(VAL_WORDS))})_loss)_([a-z]\w{{1,30}})")
_LR_SETTING_WORDS = {"decay", "iters", "steps", "warmup", "min", "max", "mult", "ratio", "factor", "gamma"}
_BATCH_WORDS = {"step", "batch"}
_COUNT_ENDING = re.compile(r"_(?:idx|index|id|num|no|nr|number|count)$")
_REWARD_WORDS = {"reward", "rewards"}
_NO_REWARD_WORDS = {
    "timing", "time", "seconds", "chosen", "rejected", "margin", "margins", "accuracy", "accuracies",
    *_PART_WORDS,
}  # fmt: skip
_MAX_NAME_CHARS = 200
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # evalLoss, LMAccuracy
MAX_BARE_LOSS = 20.0  # of a vocabulary of 500 million
_CONTAINERS = (  # of objects in objects, and the folders of tags
    "extras_", "extra_", "metrics_", "stats_", "info_", "scalars_", "performance_", "timing_", "speed_",
)  # fmt: skip


# Of a column that means something else: a coefficient of variation, a value, valid tokens, a device.
_AMBIGUOUS_WORDS = {"cv", "va", "valid", "dev"}
# Of a column with another one of VAL_WORDS: no value that shows that held-out data were evaluated.
_NO_EVAL_WORDS = OTHER_TIMES | {
    "n", "num", "count", "counts", "interval", "freq", "since", "next", "patience", "batch", "size", "steps",
    "step", "iter", "iters", "epoch", "time", "runtime", "seconds", "sec", "secs", "s", "ms",
}  # fmt: skip

# What a row is about, where rows of several kinds follow each other: {"event": "eval", "loss": 3.1}.
KIND_KEYS = frozenset(
    ("event", "type", "kind", "name", "tag", "event_type", "event_name", "record", "record_type", "log_type")
)
# A row of these kinds, and none of the others, has no loss of its own.
_NO_LOSS_WORDS = frozenset(
    ("best", "final", "summary", "end", "ended", "done", "complete", "completed", "finished", "finish",
     "checkpoint", "save", "saved", "start", "started", "config")
)  # fmt: skip
_STEP_WORDS = frozenset(("train", "training", "step", "iter", "iteration", "epoch", "batch", "update"))


class Metric(NamedTuple):
    """What measures learning besides the loss."""

    kind: str
    rank: int  # the lowest is shown first
    higher_is_better: bool | None  # None: neither
    is_eval: bool


# kind: the last word or words of its names, and whether higher is better. The first are shown first.
METRIC_NAMES: dict[str, tuple[str, bool | None]] = {
    "reward": ("", True),  # see the role
    "accuracy": (
        "accuracy accuracies acc correct_rate exact_match pass_1 pass_k p_1 hella hellaswag goldenswag "
        "win_rate wacc acc_norm mc1 mc2 hit_rate hits_k recall_k precision_k top1 top5 success_rate "
        "solve_rate",
        True,
    ),
    "error_rate": ("wer cer per ter eer error_rate", False),
    "score": (
        "f1 f1score f1_score auc auroc roc_auc bleu bleu_1 bleu_2 bleu_3 bleu_4 rouge rouge_1 rouge_2 "
        "rouge_l rougel rouge1 rouge2 rougelsum mrr ndcg ndcg_k core_metric chrf chrf_2 chrf2 meteor comet "
        "bleurt bertscore spbleu sacrebleu codebleu cider recall r2 mcc kappa spearman pearson",
        True,
    ),
    "margin": ("margin margins", True),
    "length": ("response_length completion_length completions_length mean_length", None),
    "kl": ("kl kl_ref kl_div kl_divergence approx_kl reverse_kl mean_kl kl_mean", None),
    "perplexity": ("perplexity ppl", False),
    "bits_per_byte": ("bpb bpc bits_per_byte bits_per_char bits_per_character", False),
}
_MAX_ENDING_WORDS = 3
_METRIC_ENDINGS = {
    ending: (kind, rank, higher_is_better)
    for rank, (kind, (endings, higher_is_better)) in enumerate(METRIC_NAMES.items())
    for ending in endings.split()
}
_EVAL_ENDINGS: dict[str, bool | None] = {"score": True, "rate": None}  # of any evaluation, after those above
# Of several, one of which a line is about: `Epoch 3 | Dataset 01 | ACC 0.52`.
LABELS = re.compile(
    r"\b(?:dataset|task|fold|subset|domain|group|client|language|corpus|head)\b", re.IGNORECASE
)
_SPLIT_ENDINGS = VAL_WORDS | {"train", "training"}
_NO_METRIC_WORDS = {"std", "var", "min", "max", "best", "coef", "coeff", "target", "steps", "grad"}


def normalise(name: str) -> str:
    """`Train/Loss` -> `train_loss`. A leading underscore stays: it marks wandb's own columns."""
    plain = re.sub(r"\W+", "_", name.strip().lower()).rstrip("_").replace("held_out", "heldout")
    return plain if name.startswith("_") else plain.lstrip("_")


def is_reinforcement(names: Iterable[str]) -> bool:
    """Whether these columns are of reinforcement learning, whose loss is near zero by construction. The
    rewards of a preference loss (DPO) are implicit ones, and its loss measures learning."""
    others = {"kl", "reward_std", "frac_reward_zero_std"}
    return any(
        role_of(name) == "reward" or normalise(name).removeprefix("train_") in others for name in names
    )


@lru_cache(maxsize=1 << 14)
def metric_of(name: str) -> Metric | None:
    """By its name, as `role_of`; None for any other value of a line or a table."""
    if len(name) > _MAX_NAME_CHARS:
        return None
    name = name.replace("val-aux/", "val/")  # verl's, of a validation: no auxiliary loss
    plain = re.sub(r"(?:_mean|_avg|_epoch|_step)(?:_\d{1,4})?$", "", normalise(name))
    words = plain.split("_")
    if len(words) > 1 and words[-1] in _SPLIT_ENDINGS:  # Accuracy/train
        words = [words[-1], *words[:-1]]
    is_eval = not VAL_WORDS.isdisjoint((*words, words[0].rstrip("0123456789"))) or plain in (
        "hella",
        "hellaswag",
        "goldenswag",
        "hellaswag_accuracy",
        "core_metric",
    )
    if _NO_METRIC_WORDS.intersection(words):
        return None
    ranked = ranked_role(name) or ranked_role(plain)
    if ranked is not None and ranked[0] == "reward":
        return Metric("reward", 0 if is_eval else min(9, ranked[1]) + 1, True, is_eval)
    if len(words) > 1 and words[-1].isdecimal() and f"{words[-2]}_k" in _METRIC_ENDINGS:
        words[-1] = "k" if words[-2:] != ["pass", "1"] else "1"  # recall@10
    for count in range(_MAX_ENDING_WORDS, 0, -1):
        if found := _METRIC_ENDINGS.get("_".join(words[-count:])):
            kind, rank, higher_is_better = found
            is_part = LABELS.match(name) is not None  # a mean over all of them is told first
            return Metric(kind, 10 * rank + 5 * (not is_eval) + is_part, higher_is_better, is_eval)
    if is_eval and ranked is None and words[-1] in _EVAL_ENDINGS:
        return Metric(words[-1], 10 * len(METRIC_NAMES), _EVAL_ENDINGS[words[-1]], is_eval)
    apart = _CAMEL_CASE.sub("_", name)
    return metric_of(apart) if ranked is None and apart != name else None


def is_of_eval(name: str) -> bool:
    """Whether a number under this name shows that held-out data were evaluated: no count, time or setting."""
    words = set(normalise(name).split("_"))
    return not words.isdisjoint(VAL_WORDS - _AMBIGUOUS_WORDS) and words.isdisjoint(_NO_EVAL_WORDS)


def split_of_kind(text: str) -> str | None:
    """What a row's kind says about its loss: the split of held-out data that it is of; empty: it is of
    training; None: it has none of its own."""
    words = normalise(text[:_MAX_NAME_CHARS]).split("_")
    if _NO_LOSS_WORDS.isdisjoint(words) or not _STEP_WORDS.isdisjoint(words):
        return next((word for word in words if word in VAL_WORDS), "")
    return None


def role_of(name: str) -> Role | None:
    ranked = ranked_role(name)
    return None if ranked is None else ranked[0]


@lru_cache(maxsize=1 << 14)
def ranked_role(name: str) -> tuple[Role, int] | None:
    """The role, and the place in its list: the lowest is the best."""
    if len(name) > _MAX_NAME_CHARS:
        return None
    plain = normalise(name)
    for container in _CONTAINERS:
        plain = plain.removeprefix(container)
    if plain in _RANKS:
        return _RANKS[plain]
    counted = _RANKS.get(_COUNT_ENDING.sub("", plain))
    if counted is not None and counted[0] in ("iteration", "epoch", "batch"):  # batch_index, step_count
        return counted[0], _OTHER_RANK
    words = plain.split("_")
    if not {"loss", "nll", "xent", "ce"}.isdisjoint(words) and _LOSS_WORDS.issuperset(words):
        return (
            "loss" if VAL_WORDS.isdisjoint(words) else "val_loss",
            _OTHER_RANK + 10 * ("epoch" in words),
        )
    if words[-1] == "loss" and not _PART_WORDS.intersection(words):
        return ("val_loss" if VAL_WORDS.intersection(words) else "loss"), PART_RANK + len(words)
    all_words = normalise(name).split("_")  # timing_s/reward is none
    if _REWARD_WORDS.intersection((words[0], words[-1])) and not _NO_REWARD_WORDS.intersection(all_words):
        return "reward", _OTHER_RANK + len(words)
    # Lightning's lr-AdamW/pg1, with any optimizer's name
    if plain.startswith("lr_") and _LR_SETTING_WORDS.isdisjoint(words):
        return "lr", _OTHER_RANK
    apart = _CAMEL_CASE.sub("_", name)
    if apart != name:
        return ranked_role(apart)
    is_loss = words[-1].endswith("loss") and words[-1] != "loss" and not _PART_WORDS.intersection(words)
    return ranked_role(f"{plain.removesuffix('loss')}_loss") if is_loss else None  # closs, mlmloss


def bare_losses(names: Iterable[str]) -> dict[Role, str]:
    """Columns that are called `train` and `val`, and nothing more: losses, where no other column is one and
    their values are like that. Empty where there are no two such columns beside a count."""
    plain = {normalise(name): name for name in names}
    roles = {role_of(name) for name in plain.values()}
    val = next((plain[word] for word in ("val", "valid", "validation", "dev") if word in plain), None)
    if "train" not in plain or val is None or roles & {"loss", "val_loss", "val_bpb"}:
        return {}
    return {"loss": plain["train"], "val_loss": val} if roles & {"iteration", "epoch"} else {}


def are_losses(values: Sequence[float]) -> bool:
    """Whether numbers without a name may be losses in the order of a run: they fall, from a value that no
    share, percentage or perplexity begins with."""
    return len(values) > 1 and 0 <= values[-1] < values[0] and 1 < values[0] < MAX_BARE_LOSS


def losses_of_sets(names: Iterable[str]) -> list[str]:
    """Those of several held-out sets, where each name has that of its set: val_loss_en, val_loss_de."""
    matches = [(match, name) for name in names if (match := _OF_SET.fullmatch(normalise(name)))]
    of_sets = [(match[1], name) for match, name in matches if match[2] not in _PART_WORDS]
    return [name for stem, name in of_sets if sum(stem == other for other, _ in of_sets) > 1]


def choose_columns(counts: Mapping[str, int]) -> dict[Role, str]:
    """For each role the column that is taken. `counts`: in how many rows each column has a value.

    A column with less than half as many values as the fullest one of its role is left out: it is a summary.
    Of the others the first in the list of names is taken, of equal names one with a slash, or the first.
    """
    candidates: dict[Role, list[tuple[tuple[bool, int, bool], str]]] = {}
    is_one_row = max(counts.values(), default=0) == 1
    for name in counts:
        if ranked := ranked_role(name):
            # Of a single row, a mean says more than the loss of its last batch.
            is_of_batch = (
                is_one_row and ranked[0] == "loss" and not _BATCH_WORDS.isdisjoint(normalise(name).split("_"))
            )
            # Beside the Trainer's train/loss of a step, train_loss is the mean of the whole run.
            place = (is_of_batch, ranked[1], "/" not in name)
            candidates.setdefault(ranked[0], []).append((place, name))
    chosen: dict[Role, str] = {}
    for role, ranked_names in candidates.items():
        fullest = max(counts[name] for _, name in ranked_names)
        full = [one for one in ranked_names if 2 * counts[one[1]] >= fullest]
        chosen[role] = min(full, key=lambda one: one[0])[1]
    if "val_loss" not in chosen and (of_sets := losses_of_sets(counts)):
        chosen["val_loss"] = of_sets[0]
    return chosen
