"""What a column is, by its name; and which of several is taken."""

from __future__ import annotations

from collections import Counter

from glassgpt.runs.metric_columns import NAMES, Role, choose_columns, metric_of, normalise, role_of

# As trainers and trackers write them.
KNOWN: dict[str, Role] = {
    "step": "iteration",
    "Step": "iteration",
    "_step": "iteration",
    "trainer/global_step": "iteration",
    "current_steps": "iteration",
    "iter": "iteration",
    "Epoch": "epoch",
    "train/epoch": "epoch",
    "total_steps": "planned_iterations",
    "loss": "loss",
    "Training Loss": "loss",
    "train/loss": "loss",
    "train_loss_step": "loss",
    "train/CrossEntropyLoss": "loss",
    "loss_metrics/global_avg_loss": "loss",
    "my_model_loss": "loss",
    "Loss/train_batch": "loss",
    "Loss/val_epoch": "val_loss",
    "val_loss": "val_loss",
    "Validation Loss": "val_loss",
    "val/loss": "val_loss",
    "eval/loss": "val_loss",
    "eval_wikitext_loss": "val_loss",
    "val/bpb": "val_bpb",
    "learning_rate": "lr",
    "lr-AdamW/pg1": "lr",
    "lr-Lion": "lr",
    "train/grad_norm": "grad_norm",
    "tokens/s": "tokens_per_s",
    "tok/sec": "tokens_per_s",
    "mfu": "mfu",
    "num_input_tokens_seen": "tokens",
    "step_time_ms": "step_ms",
    "dt": "step_time",
    "_runtime": "elapsed_s",
    "elapsed_time": "elapsed_s",
    "_timestamp": "timestamp",
    "Wall time": "timestamp",
    "eval/runtime": "eval_s",
}
UNKNOWN = (
    "", "accuracy", "val_accuracy", "train/loss__MIN", "aux_loss", "kl_loss", "train/z_loss", "loss_scale",
    "best_val_loss", "remaining_time", "percentage", "step_size", "lossless", "x" * 300 + "_loss",
)  # fmt: skip


def test_the_names_that_people_use() -> None:
    assert {name: role_of(name) for name in KNOWN} == KNOWN
    assert [name for name in UNKNOWN if role_of(name) is not None] == []


def test_every_name_has_one_role_and_is_written_as_names_are_compared() -> None:
    names = [name for listed in NAMES.values() for name in listed.split()]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert [name for name in names if normalise(name) != name] == []


def test_of_two_columns_the_first_in_the_list_is_taken() -> None:
    cases: list[tuple[dict[str, int], Role, str]] = [
        ({"_step": 9, "train/global_step": 9}, "iteration", "train/global_step"),
        ({"step": 9, "_step": 9}, "iteration", "step"),
        ({"train_loss_epoch": 9, "train_loss_step": 9}, "loss", "train_loss_step"),
        ({"test_loss": 9, "val_loss": 9}, "val_loss", "val_loss"),
        ({"other_loss": 9, "loss": 9}, "loss", "loss"),
        ({"b_loss": 9, "a_loss": 9}, "loss", "b_loss"),
    ]
    wrong = [(counts, taken) for counts, role, taken in cases if choose_columns(counts)[role] != taken]
    assert wrong == []


def test_a_column_with_few_values_is_a_summary() -> None:
    """The Trainer's `train_loss` is the mean of the run, in the last row; likewise in trackers."""
    assert choose_columns({"train/loss": 100, "train_loss": 1})["loss"] == "train/loss"
    assert choose_columns({"train_loss": 1, "train/loss": 100})["loss"] == "train/loss"
    assert choose_columns({"loss": 10, "train_loss": 100})["loss"] == "train_loss"
    assert choose_columns({"loss": 50, "train_loss": 100})["loss"] == "loss"
    assert choose_columns({"train_loss": 1, "train/loss": 1})["loss"] == "train/loss"
    assert choose_columns({"train_loss": 1})["loss"] == "train_loss"
    assert choose_columns({"val_loss": 0}) == {"val_loss": "val_loss"}
    assert choose_columns({}) == {}


def test_names_with_the_split_at_their_end() -> None:
    names = ("Accuracy/eval", "Accuracy/train", "val_chrf", "Learn_rate/train", "lr-AdamW-weight_decay")
    kinds = [(metric.kind, metric.is_eval) for name in names if (metric := metric_of(name))]
    assert kinds == [("accuracy", True), ("accuracy", False), ("score", True)]
    assert [role_of(name) for name in names] == [None, None, None, "lr", None]


def test_names_in_camel_case() -> None:
    roles = {"evalLoss": "val_loss", "trainLoss": "loss", "learningRate": "lr", "globalStep": "iteration"}
    assert {name: role_of(name) for name in roles} == roles
    assert [role_of(name) for name in ("bestLoss", "TFLOPs", "lossScale")] == [None] * 3
    metric = metric_of("lambada/0-shot/InContextLearningLMAccuracy")
    assert metric is not None
    assert (metric.kind, metric.higher_is_better) == ("accuracy", True)


def test_directions_of_metrics_by_their_names() -> None:
    higher = (
        "val_pass@10",
        "eval/recall@5",
        "top5",
        "val chrF",
        "rougeLsum",
        "eval_exact_match",
        "val_ndcg@10",
    )
    lower = ("val_wer", "eval/perplexity", "val_eer")
    known = {name: metric.higher_is_better for name in (*higher, *lower) if (metric := metric_of(name))}
    assert known == dict.fromkeys(higher, True) | dict.fromkeys(lower, False)
    others = ("eval/colour", "step_5", "precision", "batch_10", "top_k", "top_200")
    assert [metric_of(name) for name in others] == [None] * len(others)
