"""The csv files are tables of what holds."""

from __future__ import annotations

import time
from pathlib import Path

from fake_trackers import MakeConfig, records, resume, run_until_crash, table

from glassgpt.track.to_csv import COLUMNS
from glassgpt.training.session import train


def test_csv_files_are_tables_of_what_holds(tiny: MakeConfig) -> None:
    config = tiny(max_iters=20, eval_interval=4, track="csv")
    run_until_crash(config, 11)
    steps = Path(config.out_dir) / "steps.csv"
    assert [int(row["iter"]) for row in table(steps)] == list(range(1, 12))
    resume(config)
    step, evaluation = records(config.out_dir, "step"), records(config.out_dir, "eval")
    rows = table(steps)
    assert [int(row["iter"]) for row in rows] == list(range(1, 21))
    assert [float(row["loss"]) for row in rows] == [record["loss"] for record in step]
    assert [row["process"] for row in rows] == ["0"] * 8 + ["1"] * 12
    assert time.strptime(rows[0]["time"], "%Y-%m-%d %H:%M:%S")
    assert rows[0]["step_ms"] == ""  # not known
    rows = table(Path(config.out_dir) / "evals.csv")
    assert [(row["iter"], row["split"]) for row in rows] == [
        (str(record["iter"]), record["split"]) for record in evaluation
    ]


def test_csv_columns_are_fields_of_the_records(tiny: MakeConfig) -> None:
    run = train(tiny(max_iters=2))
    for kind, columns in COLUMNS.items():
        assert set(columns) <= set(records(run.out_dir, kind)[0])
