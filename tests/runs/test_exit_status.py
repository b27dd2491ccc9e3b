"""How a run ended, by the last things its log says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from log_checks import parse_facts, parse_log
from run_logs import NANOGPT, make_run_log, make_steps

from glassgpt.config import ConfigValue
from glassgpt.explain.explanation import explain
from glassgpt.i18n import translate
from glassgpt.runs.exit_status import infer_exit_status, planned_last_logged_iteration
from glassgpt.runs.run_log import EventKind, LogEvent, LoggedEvaluation, LoggedSetup, RunLog
from glassgpt.runs.trainers import BY_ID


def stopped(last: int = 40, events: list[LogEvent] | None = None, **changes: Any) -> RunLog:
    """Lines up to 5, iterations up to `last`."""
    steps = make_steps(range(0, last + 1, 10))
    return make_run_log(steps, events=events or [], last_step_line=5, **changes)


def event(kind: EventKind, line: int = 6) -> LogEvent:
    return LogEvent(kind, "x", line, None)


def test_what_comes_after_the_last_iteration_decides() -> None:
    cases: list[tuple[list[EventKind], str]] = [
        (["oom"], "oom"),
        (["traceback"], "crashed"),
        (["kill"], "crashed"),
        (["interrupt"], "interrupted"),
        (["finish"], "finished"),
        (["warning"], "cut"),
        (["scaler-overflow"], "cut"),
        ([], "cut"),
        (["traceback", "oom"], "oom"),
        (["traceback", "interrupt"], "interrupted"),
        (["interrupt", "oom"], "oom"),
        (["traceback", "finish"], "crashed"),
        (["finish", "interrupt"], "finished"),  # what comes after a trainer's own end is another program's
    ]
    wrong = [
        (kinds, ended, got)
        for kinds, ended in cases
        if (got := infer_exit_status(stopped(events=[event(kind) for kind in kinds]))) != ended
    ]
    assert wrong == []


def test_what_came_before_does_not() -> None:
    assert infer_exit_status(stopped(events=[event("oom", line=3), event("finish", line=5)])) == "cut"


def test_a_plan_that_is_known() -> None:
    cases: list[tuple[dict[str, ConfigValue], int, str]] = [
        ({"max_iters": 40}, 40, "finished"),
        ({"max_iters": 41}, 40, "finished"),  # with a line each 10, the last one is 40
        ({"max_iters": 50}, 40, "cut"),
        ({"max_iters": 41, "log_interval": 1}, 40, "cut"),
        ({"max_iters": 45, "log_interval": 20}, 40, "finished"),
        ({"max_iters": "many"}, 40, "cut"),
        ({"log_interval": 0, "max_iters": 40}, 40, "finished"),
    ]
    wrong = [
        (settings, last, ended, got)
        for settings, last, ended in cases
        if (got := infer_exit_status(stopped(last, settings=settings))) != ended
    ]
    assert wrong == []


def test_a_plan_that_the_lines_say() -> None:
    assert infer_exit_status(stopped(setup=LoggedSetup(planned_iterations=40))) == "finished"
    assert infer_exit_status(stopped(setup=LoggedSetup(planned_iterations=50))) == "cut"
    assert (
        planned_last_logged_iteration(stopped(setup=LoggedSetup({"max_iters": 5}, planned_iterations=50)))
        == 50
    )


def test_nanogpt_stops_with_an_evaluation() -> None:
    at_end = [(0, None, 4.0), (40, None, 3.0)]
    assert infer_exit_status(stopped(evals=at_end)) == "finished"
    assert infer_exit_status(stopped(evals=[(0, None, 4.0), (20, None, 3.0)])) == "cut"
    assert infer_exit_status(stopped(evals=at_end, settings={"max_iters": 100})) == "cut"
    assert infer_exit_status(stopped(last=0, evals=[(0, None, 4.0)])) == "cut"


def test_the_grid_may_be_finer_at_the_start() -> None:
    evals = [LoggedEvaluation(at, 0, 2.0) for at in (0, 1, 10, 100, 200, 300, 305)]
    run_log = make_run_log(make_steps(range(306)), trainer=BY_ID["build-nanogpt"])
    assert infer_exit_status(replace(run_log, evals=tuple(evals))) == "finished"
    assert infer_exit_status(replace(run_log, evals=tuple(evals[:-1]))) == "cut"


def test_others_need_one_off_the_grid() -> None:
    build = BY_ID["build-nanogpt"]
    on_grid = [(0, None, 4.0), (20, None, 3.0), (40, None, 3.0)]
    off_grid = [(0, None, 4.0), (15, None, 3.0), (30, None, 3.0), (40, None, 3.0)]
    assert infer_exit_status(stopped(evals=on_grid, trainer=build)) == "cut"
    assert infer_exit_status(stopped(evals=off_grid, trainer=build)) == "finished"
    unknown = BY_ID["unknown"]
    assert infer_exit_status(stopped(evals=off_grid, trainer=unknown)) == "cut"


def test_a_run_that_goes_on_has_not_ended() -> None:
    assert infer_exit_status(stopped(live=True, events=[event("oom")])) is None


def test_a_record_that_says_it_itself() -> None:
    cases: list[str] = ["finished", "interrupted", "crashed", "oom", "cut"]
    wrong = [
        (said, got)
        for said in cases
        if (got := infer_exit_status(stopped(ended=said, events=[event("oom")]))) != said
    ]
    assert wrong == []


def test_a_log_without_iterations() -> None:
    empty = make_run_log(make_steps([]), trainer=NANOGPT)
    assert infer_exit_status(empty) == "cut"
    assert infer_exit_status(make_run_log(make_steps([]), events=[event("oom")])) == "oom"


# --- the words of programs ---

LINES = [f"iter {at}: loss 3.{at:04d}, time 50.00ms, mfu 5.00%\n" for at in range(0, 50, 10)]
# fmt: off
ENDS = (
    "[2026-06-26 18:39:46] run complete @ step 11295: 1362.22 min training time",
    "end of training, duration: 5270s.", "Early stopping triggered after epoch 7",
    "total time taken: 15738.9",
    "`Trainer.fit` stopped: `max_epochs=5` reached.", "END TIME: Tue Mar 31 14:12:08 CEST 2026",
    "=== done ===",
    "Training complete!", "training completed in 3h", "=== Training finished ===", "Training is done.",
    "Finished training", "Saved final weights to adapters/adapters.safetensors.", "Saving final model to out",
    "2026-01-05 08:12:40.118 | INFO     | __main__:fit:88 - Fine-tuning completed!", "TRAINING COMPLETED",
    "INFO:__main__:✅ Training completed successfully!", "Total training time: 88.20 seconds",
    "Copying report.md to current directory for convenience",
    "18:47:50 | INFO | Done. Total time: 83.0 min",
    "INFO 2026-06-12 18:27:59 ot_train.py:438 End of training",
    "2023-08-25 11:37:11 INFO     complete training: model ckpt was saved at tmp/model_a",
    "[pre] early stop after 12 rounds (no improvement for 3)", "[done] weights=out/last.pt",
    "Target loss 0.099999 reached at step 4578, loss=0.094433",
)
NO_ENDS = (
    "Complete training pipeline", "Target loss: 0.1",
    "training complete 50% of the way", "He said that the run was complete", "Saved weights to out",
    "the final model will be saved later", "Training runs", "report of the training",
    "EarlyStopping counter: 3 out of 5", "early stopping patience: 4/5", "early_stopping=True",
    "early stop: 5", "[done] epoch 2", "Total time: unknown", "the work is done and",
    "Epoch 3 - training completed", "INFO - epoch 2: training finished", "Total training time: unknown",
)
# fmt: on


def test_what_programs_print_when_they_are_done() -> None:
    assert [line for line in ENDS if parse_facts("".join(LINES) + line + "\n").ended != "finished"] == []
    assert [line for line in NO_ENDS if parse_facts("".join(LINES) + line + "\n").ended != "cut"] == []


def test_the_time_that_a_closing_line_says() -> None:
    cases = (
        ("training completed in 3h", 10800), ("Training took 1 hour 2 min 3.5 s", 3723.5),
        ("end of training, duration: 5270s.", 5270), ("Training completed in 500 steps", None),
    )  # fmt: skip
    texts = [("".join(LINES) + line + "\n", seconds) for line, seconds in cases]
    assert [parse_log(text).setup.wall_s for text, _ in texts] == [seconds for _, seconds in texts]


def test_batches_that_a_loop_leaves_out() -> None:
    lines = ("NaN loss detected! Skipping batch.", "skipped this step: gradient is inf", "skip-nan: true")
    run_log = parse_log(
        "".join(LINES) + "".join(f"[WARNING] {line}\n" for line in lines) + "".join(LINES[-1:])
    )
    assert run_log.event_counts.get("nonfinite-skip") == 2


def test_a_closed_terminal_stops_a_run() -> None:
    """A shell reports the signal SIGHUP as Hangup."""
    text = "".join(LINES) + 'launch.sh: line 12: 40112 Hangup                  "${COMMAND[@]}" 2>&1\n'
    assert parse_facts(text).ended == "interrupted"


def test_an_end_in_the_middle_is_none() -> None:
    """More steps of the run follow."""
    texts = ["".join((*LINES[:3], line + "\n", *LINES[3:])) for line in ENDS]
    assert [text for text in texts if parse_facts(text).ended != "cut"] == []


def test_a_crash_after_the_end_is_not_the_runs() -> None:
    text = "".join(LINES) + "Training complete!\nTraceback (most recent call last):\nValueError: no plot\n"
    run_log = parse_log(text)
    assert infer_exit_status(run_log) == "finished"
    assert [(one.kind, one.line) for one in run_log.events] == [("finish", 6), ("traceback", 7)]


def test_the_closing_evaluation_of_the_planned_iteration_is_the_end() -> None:
    setup = LoggedSetup(planned_iterations=50)
    run_log = stopped(setup=setup, trainer=BY_ID["nanochat"])
    assert infer_exit_status(run_log) == "cut"
    evaluated = replace(run_log, evals=(LoggedEvaluation(50, 0, 2.0),))
    assert infer_exit_status(evaluated) == "finished"
    assert infer_exit_status(replace(evaluated, trainer=NANOGPT)) == "cut"  # iteration 50 is to come


def test_how_little_of_the_plan_was_done_is_said() -> None:
    text = "max_iters = 50000\n" + "".join(LINES)
    verdict = explain(parse_log(text)).verdict
    assert translate("verdict.share_of_plan", share=40 / 50_000, planned=50_000) in verdict
    verdict = explain(parse_log(text + "Training complete!\n")).verdict
    assert not any("planned" in sentence for sentence in verdict)


def test_a_traceback_without_its_first_lines() -> None:
    steps = "".join(f"step {at} loss 2.5\n" for at in range(10, 60, 10))
    frames = (
        '  File "/x/train.py", line 167, in <module>\n    main()\n  File "/x/train.py", line 9, in main\n'
    )
    error = "[Errno 2] No such file or directory: 'out/a.pth.tmp' -> 'out/a.pth'"
    run_log = parse_log(steps + frames + "    os.replace(a, b)\n" + error + "\n")
    [event] = [event for event in run_log.events if event.kind == "traceback"]
    assert (event.line, error in event.text) == (6, True)
    assert infer_exit_status(run_log) == "crashed"
    [finding] = [one for one in explain(run_log).findings if one.id == "crashed"]
    assert finding.values["quoted"] == error[:100]


def test_a_target_that_is_achieved_ends_a_run() -> None:
    steps = "".join(f"step {at} loss 2.5\n" for at in range(10, 60, 10))
    assert parse_facts(steps + "\N{PARTY POPPER} Target loss achieved at step 53!\n").ended == "finished"
    assert parse_facts(steps + "target loss: 0.1\n").ended == "cut"


def test_ranks_that_torchrun_stops_are_not_the_end() -> None:
    text = "".join(f"iter {at}: loss 3.0000, time 33.00ms, mfu 5.00%\n" for at in range(0, 50, 10))
    traceback = "Traceback (most recent call last):\n{}\n"
    report = traceback.format("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
    report += "  exitcode  : -15 (pid: 7)\n  traceback : Signal 15 (SIGTERM) received by PID 7\n"
    assert parse_facts(text + traceback.format("ValueError: no") + report).ended == "crashed"
    assert parse_facts(text + report).ended == "interrupted"


def test_a_speedruns_target_ends_it() -> None:
    text = "".join(f"iter {at}: loss 3.0000, time 33.00ms, mfu 5.00%\n" for at in range(0, 50, 10))
    line = "Speedrun target achieved at step {} with val_loss 3.2745 at time 14674580.53ms !\n"
    assert parse_facts(text + line.format(40)).ended == "finished"
    assert parse_facts(text + line.format("{step}")).ended == "cut"
