"""Files with tables of metrics, in the form in which trainers and trackers write them."""

from __future__ import annotations

import json
from collections.abc import Mapping

EVERY = 10


def loss_at(iteration: int) -> float:
    return round(2 + 3 / (1 + iteration / 50), 4)


def trainer_state(steps: int = 200, planned: int = 200, **changes: object) -> str:
    """Hugging Face's trainer_state.json."""
    history: list[Mapping[str, object]] = []
    for at in range(EVERY, steps + 1, EVERY):
        row = {"epoch": at / 100, "grad_norm": 1.5, "learning_rate": 1e-4, "loss": loss_at(at), "step": at}
        history.append(row)
        if at % 100 == 0:
            history.append(
                {"epoch": at / 100, "eval_loss": loss_at(at) + 0.1, "eval_runtime": 4.5, "step": at}
            )
    state = {
        "best_metric": 2.7,
        "best_model_checkpoint": "out/checkpoint-100",
        "epoch": 2.0,
        "global_step": steps,
        "log_history": history,
        "logging_steps": EVERY,
        "max_steps": planned,
        "num_input_tokens_seen": 0,
        "total_flos": 1e15,
        "train_batch_size": 8,
    }
    return json.dumps(state | changes, indent=2)


def trainer_log(steps: int = 200, seconds_per_step: float = 2.0, closes: bool = True) -> str:
    """LLaMA-Factory's trainer_log.jsonl."""
    lines = []
    for at in range(EVERY, steps + 1, EVERY):
        seconds = int(at * seconds_per_step)
        row: dict[str, object] = {"current_steps": at, "total_steps": 200, "loss": loss_at(at), "lr": 1e-5}
        row |= {"epoch": at / 100, "percentage": at / 2, "elapsed_time": _clock(seconds)}
        lines.append(json.dumps(row | {"remaining_time": "0:01:00", "throughput": 3000.5}))
    if closes:
        closing = {"current_steps": 200, "total_steps": 200, "epoch": 2.0, "percentage": 100.0}
        lines.append(json.dumps(closing | {"elapsed_time": _clock(int(200 * seconds_per_step))}))
    return "".join(line + "\n" for line in lines)


def _clock(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def lightning_csv(steps: int = 200) -> str:
    """CSVLogger's metrics.csv: columns in the order of their names, most cells empty."""
    lines = ["epoch,lr-AdamW,step,train_loss_epoch,train_loss_step,val_loss"]
    for at in range(EVERY - 1, steps, EVERY):
        lines += [f"{at // 100},,{at},,{loss_at(at)},", f"{at // 100},0.0003,{at},,,"]
        if at % 100 == 99:
            lines += [f"{at // 100},,{at},,,{loss_at(at) + 0.1}", f"{at // 100},,{at},3.3,,"]
    return "\n".join(lines) + "\n"


def wandb_csv() -> str:
    """Two runs beside each other; the second logs every second time."""
    runs = ("fast-sun-1", "slow - moon-2")
    names = ["Step", *(f"{run} - train/loss{end}" for run in runs for end in ("", "__MIN", "__MAX"))]
    lines = [",".join(f'"{name}"' for name in names)]
    for at in range(0, 200, EVERY):
        second = [loss_at(at) + 1] * 3 if at % (2 * EVERY) == 0 else [""] * 3
        lines.append(",".join(f'"{cell}"' for cell in (at, *[loss_at(at)] * 3, *second)))
    return "\n".join(lines) + "\n"


def tensorboard_csv() -> str:
    rows = (f"{1.7e9 + at * 0.2:.3f},{at},{loss_at(at)}" for at in range(0, 200, EVERY))
    return "Wall time,Step,Value\n" + "".join(f"{row}\n" for row in rows)


def wandb_history() -> str:
    rows = [
        {"_step": at // EVERY, "_runtime": at * 0.2, "_timestamp": 1.7e9 + at * 0.2, "iter": at}
        | {"train/loss": loss_at(at), "mfu": 30.5}
        for at in range(0, 200, EVERY)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def history() -> str:
    """As Keras's `history.history`."""
    at = range(0, 200, EVERY)
    return json.dumps(
        {"loss": [loss_at(i) for i in at], "val_loss": [loss_at(i) + 0.1 for i in at], "lr": [0.1] * 20}
    )


TABLES = {
    "trainer_state": trainer_state(),
    "trainer_log": trainer_log(),
    "lightning": lightning_csv(),
    "wandb": wandb_csv(),
    "wandb history": wandb_history(),
    "history": history(),
    "tsv": "iteration\tloss\tval loss\n" + "".join(f"{at}\t{loss_at(at)}\t\n" for at in range(0, 200, EVERY)),
}
