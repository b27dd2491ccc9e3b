"""Where a count of steps begins again: another run, a round of the same one, or a part of a process."""

from __future__ import annotations

from io import StringIO

import pytest
from log_checks import parse_logs
from rich.console import Console

from glassgpt.explain.explanation import explain_runs
from glassgpt.i18n import translate
from glassgpt.runs.analysis import Analysis
from glassgpt.show.terminal.explain_view import print_explanation


def steps(losses: list[float], every: int = 1) -> list[str]:
    return [f"Step {at * every} loss: {loss:.4f}" for at, loss in enumerate(losses, 1)]


def falling(first: float, last: float, lines: int = 20) -> list[float]:
    return [first + (last - first) * at / (lines - 1) for at in range(lines)]


def text_of(*blocks: list[str]) -> str:
    return "\n".join(line for block in blocks for line in block) + "\n"


def test_rounds_of_one_model_are_one_run() -> None:
    rounds = [[f"--- Round {at}/3 ---", *steps(falling(4 - at, 3 - at, 10), every=5)] for at in (1, 2, 3)]
    (run_log,) = parse_logs(text_of(["collecting data"], *rounds, ["bye"]))
    assert run_log.steps.iteration.tolist() == list(range(5, 151, 5))
    assert (run_log.runs_in_file, run_log.parts, len(run_log.segments)) == (1, 1, 1)
    assert [note.key for note in run_log.notes] == ["rounds.joined"]
    assert run_log.notes[0].values == {"rounds": 3}


def test_a_round_that_counts_from_zero_and_totals_give_the_plan() -> None:
    lines = []
    for phase in (1, 2):
        lines += [
            f"phase {phase}/2",
            *(f"  Inner step {at}/8 | loss: {3 - phase + at / 100}" for at in (4, 8)),
        ]
    (run_log,) = parse_logs(text_of(lines))
    assert run_log.steps.iteration.tolist() == [4, 8, 12, 16]
    assert run_log.setup.planned_iterations == 16
    from_zero = [
        [f"cycle {at} begins", *(f"step {s} loss: {2 - at / 9:.3f}" for s in (0, 10, 20))] for at in (0, 1)
    ]
    (run_log,) = parse_logs(text_of(*from_zero))
    assert run_log.steps.iteration.tolist() == [0, 10, 20, 30, 40, 50]


def test_rounds_whose_loss_begins_anew_are_parts() -> None:
    """Each has new weights: the loss of none goes on from that of the one before."""
    runs = parse_logs(text_of(*([f"round {at} of 4", *steps(falling(6, 2))] for at in (1, 2, 3, 4))))
    assert [(len(one.steps), one.parts, one.runs_in_file) for one in runs] == [(20, 4, 1)] * 4
    assert [Analysis(one).facts.ended for one in runs] == ["finished"] * 4


def test_what_is_counted_may_be_layers() -> None:
    layers = [
        [
            f"{layer} mlp.up_proj",
            "pruning",
            *(f"epoch {at} loss: {layer + 1 - at / 9:.4f}" for at in range(5)),
        ]
        for layer in range(32)
    ]
    runs = parse_logs(text_of(["Model loaded."], *layers, ["took 99 s"]))
    assert [(len(one.steps), one.parts) for one in runs] == [(5, 32)] * 32
    explanation = explain_runs(runs)
    assert explanation.log is runs[-1]
    assert explanation.facts.ended == "finished"
    main = explanation.log
    lines = " " + translate("verdict.lines", first=main.first_line, last=main.last_line)
    about = translate("verdict.part_of_equals", equal=32, lines=lines)
    assert explanation.verdict[0] == translate("verdict.parts", parts=32) + " " + about


def test_a_shorter_last_part_did_not_finish() -> None:
    parts = [[f"block {at}", *steps(falling(5, 3))] for at in (1, 2, 3)]
    runs = parse_logs(text_of(parts[0], parts[1], parts[2][:12]))
    assert [Analysis(one).facts.ended for one in runs] == ["finished", "finished", "cut"]


def test_noise_that_begins_again_without_a_word_is_a_part() -> None:
    noise = [3.0, 4.1, 2.2, 3.9, 2.8, 3.3, 4.0, 2.5, 3.1, 3.6, 2.9, 3.8]
    runs = parse_logs(text_of(steps(noise), steps(noise[::-1]), steps(noise)))
    assert [(one.parts, one.runs_in_file) for one in runs] == [(3, 1)] * 3


def test_a_loss_that_begins_anew_is_another_run() -> None:
    runs = parse_logs(text_of(steps(falling(6, 2)), steps(falling(6, 2))))
    assert [(one.parts, one.runs_in_file) for one in runs] == [(1, 2)] * 2


def test_runs_and_seeds_that_are_counted_are_runs() -> None:
    for word in ("run", "seed", "trial", "fold"):
        runs = parse_logs(text_of(*([f"{word} {at}", *steps(falling(6, 2))] for at in (1, 2, 3))))
        assert [(one.parts, one.runs_in_file) for one in runs] == [(1, 3)] * 3, word


def test_a_run_begins_with_its_header() -> None:
    first = ["branch 1/2: DPO", "model: 63.91M params", *steps(falling(3, 2)), "checkpoint saved: a.pth"]
    second = ["branch 2/2: PPO", "model: 63.91M params", "dataset: 9 prompts", *steps(falling(3, 2))]
    runs = parse_logs(text_of(first, second))
    assert [(one.first_line, one.last_line) for one in runs] == [(1, 23), (24, 46)]
    # What is printed after the end is of the run before, up to a blank line.
    runs = parse_logs(text_of(first, ["training complete", "a sample", ""], second))
    assert [(one.first_line, one.last_line) for one in runs] == [(1, 26), (27, 49)]
    assert [Analysis(one).facts.ended for one in runs] == ["finished", "cut"]


def test_a_run_that_was_announced_need_not_begin_at_the_first_iteration() -> None:
    """It logs every 10th step, and the one before logged every one."""
    header = ["using device: cuda", "start training"]
    runs = parse_logs(text_of(header, steps(falling(5, 3, 30)), header, steps(falling(5, 3, 25), every=10)))
    assert [len(one.steps) for one in runs] == [30, 25]


def test_lines_that_a_document_repeats_are_no_run() -> None:
    lines = steps(falling(5, 2, 60))
    quoted = ["RESULT=", "{", '  "tail": [', *(f'    "{line}",' for line in lines[-30:]), "  ]", "}"]
    (run_log,) = parse_logs(text_of(lines, quoted))
    assert run_log.steps.iteration.tolist() == list(range(1, 61))
    assert run_log.last_line == 60 + len(quoted)


def test_the_table_of_runs_says_what_it_leaves_out() -> None:
    lengths = [10, 12, 15] + [20] * 12
    logs = [["using device: cpu", *steps(falling(5, 2, lines))] for lines in lengths]
    runs = parse_logs(text_of(*logs))
    assert [len(one.steps) for one in runs] == lengths
    explanation = explain_runs(runs)
    lines = " " + translate("verdict.lines", first=runs[-1].first_line, last=runs[-1].last_line)
    several = translate("verdict.several_equal_runs", runs=15, equal=12, lines=lines)
    assert explanation.verdict[0] == several
    out = StringIO()
    print_explanation(explanation, Console(file=out, width=140))
    assert translate("explain_view.more_runs", runs=3, most=15) in out.getvalue()


def test_a_few_lines_before_a_start_are_a_run_that_did_not_finish() -> None:
    noise = [3.0, 4.1, 2.2, 3.9, 2.8, 3.3, 4.0, 2.5, 3.1, 3.6, 2.9, 3.8]
    runs = parse_logs(text_of(steps(noise[4::-1]), steps(noise * 3), ["final val_loss 3.1"]))
    assert [(one.parts, one.runs_in_file) for one in runs] == [(1, 2)] * 2
    assert [Analysis(one).facts.ended for one in runs] == ["cut", "finished"]


@pytest.mark.parametrize(("lengths", "ended"), [((10, 10, 10), "finished"), ((10, 12, 14), "cut")])
def test_runs_of_one_length_came_to_their_end(lengths: tuple[int, ...], ended: str) -> None:
    blocks = [[f"Epoch {at}: loss: {5 - at / 9:.4f}" for at in range(count)] for count in lengths]
    runs = parse_logs(text_of(*blocks))
    assert [len(one.steps) for one in runs] == list(lengths)
    assert Analysis(runs[-1]).facts.ended == ended


def test_a_line_that_says_that_training_started_begins_a_run() -> None:
    blocks = [
        ["Training started on cuda...", *(f"Epoch {at}: loss: {start - at / 9:.4f}" for at in range(12))]
        for start in (5.0, 3.0)
    ]
    runs = parse_logs(text_of(*blocks))
    assert [(len(one.steps), one.parts, Analysis(one).facts.ended) for one in runs] == [(12, 1, "cut")] * 2
