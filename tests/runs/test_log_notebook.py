"""A notebook's output is its log; its source is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glassgpt.errors import UserError
from glassgpt.explain.explanation import explain
from glassgpt.runs import lines
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.exit_status import infer_exit_status
from glassgpt.runs.reading import read_run_log, read_run_logs

LINES = [f"iter {at}: loss {4 - at / 100:.4f}, time 33.00ms, mfu 5.00%\n" for at in range(0, 50, 10)]


def cell(source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {}, "source": [source], "outputs": list(outputs)}


def stream(text: str | list[str]) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text}


def written(path: Path, *cells: dict[str, Any], indent: int | None = 1) -> str:
    path.write_text(json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4}, indent=indent))
    return str(path)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("text", [LINES, "".join(LINES)], ids=["list", "string"])
def test_only_what_was_printed_counts(tmp_path: Path, indent: int | None, text: str | list[str]) -> None:
    source = (
        'max_iters = 10\nprint(f"saving checkpoint to {out_dir}")\nprint("iter 99: loss 1.0, time 1.00ms")'
    )
    name = written(tmp_path / "a", cell(source, stream(text)), indent=indent)
    run_log = read_run_log(name)
    facts = Analysis(run_log).facts
    assert (facts.iterations_logged, facts.last_iteration, facts.checkpoint_steps) == (5, 40, [])
    assert "max_iters" not in run_log.setup.settings


def test_what_a_later_cell_introduces_is_not_the_runs(tmp_path: Path) -> None:
    run = cell("!python train.py", stream(["number of parameters: 10.65M\n", *LINES]))
    after = cell("!python sample.py", stream("number of parameters: 15.96M\n"))
    assert read_run_log(written(tmp_path / "a", run, after)).setup.parameters == 10_650_000


def test_a_traceback_ends_it(tmp_path: Path) -> None:
    error = {
        "output_type": "error",
        "traceback": ["Traceback (most recent call last):\n", "ValueError: no\n"],
    }
    facts = Analysis(read_run_log(written(tmp_path / "a", cell("train()", stream(LINES), error)))).facts
    assert facts.ended == "crashed"


def test_a_log_that_is_only_quoted_is_read_as_a_quote(tmp_path: Path) -> None:
    cell = {"cell_type": "markdown", "metadata": {}, "source": ["It prints:\n", "\n", *LINES]}
    assert Analysis(read_run_log(written(tmp_path / "a", cell))).facts.iterations_logged == 5


def test_one_without_a_log_is_no_log(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[list[Any]] = [
        [],
        [1],
        [{"outputs": 3}],
        [{"outputs": [3]}],
        [{"outputs": [{"text": [1, None]}]}],
        [cell("x", stream("no log"))],
    ]
    for cells in cases:
        with subtests.test(repr(cells)), pytest.raises(UserError, match="is not a training log"):
            read_run_log(written(tmp_path / "a", *cells))


def test_a_torn_one_is_read_line_by_line(tmp_path: Path) -> None:
    whole = written(tmp_path / "a", cell("train()", stream(LINES)))
    Path(whole).write_text(Path(whole).read_text()[:-30])
    assert Analysis(read_run_log(whole)).facts.iterations_logged == 5


def test_one_that_is_too_large_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = written(tmp_path / "a", cell("train()", stream(LINES)))
    monkeypatch.setattr(lines, "MAX_NOTEBOOK_BYTES", 100)
    with pytest.raises(UserError, match="save its output as text"):
        read_run_log(whole)


def test_a_trainers_table_is_html(tmp_path: Path) -> None:
    """As the Trainer's callback for notebooks writes it."""
    rows = "".join(
        f"    <tr>\n      <td>{at}</td>\n      <td>{3 - at / 100:.6f}</td>\n    </tr>"
        for at in range(10, 61, 10)
    )
    html = (
        "\n    <div>\n      <progress value='60' max='60' style='width:300px;'></progress>\n"
        '      [60/60 03:21, Epoch 1/1]\n    </div>\n    <table border="1" class="dataframe">\n  <thead>\n'
        ' <tr style="text-align: left;">\n      <th>Step</th>\n      <th>Training Loss</th>\n    </tr>\n'
        f"  </thead>\n  <tbody>\n{rows}\n  </tbody>\n</table><p>"
    )
    shown = {"output_type": "display_data", "data": {"text/html": [html], "text/plain": ["<HTML object>"]}}
    result = {
        "output_type": "execute_result",
        "data": {"text/plain": "TrainOutput(global_step=60, metrics={'train_runtime': 201.5, 'epoch': 1.0})"},
    }
    run_log = read_run_log(written(tmp_path / "a", cell("trainer.train()", shown, result)))
    assert run_log.trainer.id == "hf-trainer"
    assert run_log.steps.iteration.tolist() == [10, 20, 30, 40, 50, 60]
    assert run_log.steps.loss.tolist() == pytest.approx([2.9, 2.8, 2.7, 2.6, 2.5, 2.4])
    assert (Analysis(run_log).facts.ended, run_log.setup.wall_s) == ("finished", 201.5)


def test_the_plan_of_a_run_is_that_of_its_own_cell(tmp_path: Path) -> None:
    header = "number of parameters: 0.80M\ntokens per iteration will be: 16,384\n"
    printed = header + "".join(LINES)
    sweep = "Running command: python3 train.py --max_iters 40 --no-compile --device cuda\n"
    cells = [
        cell("!python3 train.py --max_iters=3500 --device='cuda'", stream(printed)),
        cell("!python3 sample.py --num_samples=1 --max_iters=7", stream("a sample\n")),
        cell("!python3 sweep.py", stream(sweep + printed)),
        cell("!python train.py \\\n  --max_iters=90", stream(printed)),
    ]
    runs = read_run_logs(written(tmp_path / "a", *cells))
    assert [one.setup.settings.get("max_iters") for one in runs] == [3500, 40, 90]
    assert [Analysis(one).facts.ended for one in runs] == ["cut", "finished", "cut"]


@pytest.mark.parametrize(("error", "key"), [("KeyboardInterrupt: ", "notebook"), ("^C", None)])
def test_an_interrupted_cell_keeps_its_weights(tmp_path: Path, error: str, key: str | None) -> None:
    """The weights of a program that a cell started are gone."""
    name = written(tmp_path / "a", cell("train()", stream([*LINES, f"{error}\n"])))
    (finding,) = (one for one in explain(read_run_log(name)).findings if one.id == "interrupted")
    keys = {message.key for message in finding.text["explanation"]}
    assert keys == ({f"interrupted.explanation.{key}"} if key else set())


def test_an_error_in_a_later_cell_is_not_the_end_of_the_run(tmp_path: Path) -> None:
    error = "Traceback (most recent call last):\nRuntimeError: no torch.compile here\n"
    stopped = "Traceback (most recent call last):\nKeyboardInterrupt\n"
    training = cell("train()", stream("".join(LINES)))

    def ended(*cells: dict[str, Any]) -> list[tuple[str | None, set[str]]]:
        runs = read_run_logs(written(tmp_path / "a", *cells))
        ids = ("crashed", "interrupted", "crashed-after-end", "failed-start")
        about = [{one.id for one in explain(run).findings if one.id in ids} for run in runs]
        return list(zip([Analysis(run).facts.ended for run in runs], about, strict=True))

    assert ended(cell("train()", stream("".join(LINES) + error))) == [("crashed", {"crashed"})]
    assert ended(training, cell("model.compile()", stream(error))) == [("cut", {"failed-start"})]
    assert ended(training, cell("!upload", stream(stopped))) == [("cut", set())]
    both = ended(training, cell("model.compile()", stream(error)), training)
    assert [status for status, _ in both] == ["cut", "cut"]


def test_what_is_said_of_a_notebook_names_no_lines(tmp_path: Path) -> None:
    error = "Traceback (most recent call last):\nRuntimeError: no torch.compile here\n"
    name = written(tmp_path / "a", cell("train()", stream("".join(LINES) + error)))
    (finding,) = (one for one in explain(read_run_log(name)).findings if one.id == "crashed")
    assert finding.lines == ()
    assert {message.key for message in finding.text["evidence"]} >= {"crashed.evidence.quoted_error"}
    assert "line" not in finding.values


def test_each_table_whose_steps_begin_again_is_a_run(tmp_path: Path) -> None:
    def shown(first: int, minutes: int) -> dict[str, Any]:
        rows = "".join(f"<tr><td>{at}</td><td>{first - at / 100:.6f}</td></tr>" for at in range(10, 61, 10))
        html = (
            f"<div><progress value='60'></progress>[60/60 0{minutes}:00, Epoch 1/1]</div><table>"
            f"<tr><th>Step</th><th>Training Loss</th></tr>{rows}</table><p>"
        )
        return {"output_type": "display_data", "data": {"text/html": [html]}}

    run_logs = read_run_logs(written(tmp_path / "a", cell("train()", *(shown(at, at) for at in (3, 2, 1)))))
    assert [one.steps.iteration.tolist() for one in run_logs] == [list(range(10, 61, 10))] * 3
    assert [one.setup.wall_s for one in run_logs] == [180.0, 120.0, 60.0]
    assert {Analysis(one).facts.ended for one in run_logs} == {"finished"}


@pytest.mark.parametrize(("planned", "status", "at"), [(50, "finished", 50), (90, "cut", 40)])
def test_what_a_later_cell_evaluates_comes_after_the_last_iteration(
    tmp_path: Path, planned: int, status: str, at: int
) -> None:
    text = "".join(f"{step:5d}/{planned:5d}: loss {4 - step / 100:.4f}\n" for step in range(0, 50, 10))
    name = written(
        tmp_path / "a", cell("train()", stream(text)), cell("evaluate()", stream("val loss 3.7\n"))
    )
    run_log = read_run_log(name)
    assert infer_exit_status(run_log) == status
    assert [one.iteration for one in run_log.evals] == [at]
