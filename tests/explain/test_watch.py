"""What a followed run says that it had not said before: evaluations and findings, each once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import finished_run, write_run
from written_findings import written_finding

from glassgpt.errors import UserError
from glassgpt.estimate.cards import find_card
from glassgpt.explain.explanation import explain
from glassgpt.explain.watch import FollowedRun, WatchUpdate
from glassgpt.record import journal
from glassgpt.runs.overrides import parse_overrides
from glassgpt.runs.reading import read_run_log


class Clock:
    """Stands still unless set; `cost` passes whenever it is read, as if work took that long."""

    def __init__(self, cost: float = 0.0) -> None:
        self.now, self.cost = 100.0, cost

    def __call__(self) -> float:
        self.now += self.cost
        return self.now


def log_lines(last: int = 600, first: int = 0) -> list[str]:
    lines = ["tokens per iteration will be: 16,384", "number of parameters: 10.65M"]
    for at in range(first, last + 1, 10):
        loss, ms = 4.2 / (1 + at / 300), 168.0 + at % 7 / 10
        if at % 250 == 0:
            lines.append(f"step {at}: train loss {loss:.4f}, val loss {loss + 0.05:.4f}")
            ms = 12543.0 if at == 0 else 5985.0
        lines.append(f"iter {at}: loss {loss:.4f}, time {ms:.2f}ms, mfu 2.21%")
    return lines


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "n.log"


def followed(log: Path, is_writing: bool = True) -> FollowedRun:
    return FollowedRun(str(log), is_writing=lambda: is_writing, clock=Clock())


def append(log: Path, lines: list[str]) -> None:
    with log.open("a") as file:
        file.write("\n".join(lines) + "\n")


def news(run: FollowedRun) -> WatchUpdate:
    run.poll()
    run.refresh(force=True)
    update = run.news()
    assert update is not None
    return update


def ids(update: WatchUpdate) -> list[str]:
    return [finding.id for finding in update.findings]


def test_nothing_to_explain_yet(log: Path) -> None:
    append(log, ["Shall I compare thee", "to a summer's day"])
    run = followed(log)
    run.poll()
    assert not run.refresh(force=True)
    assert run.news() is None


def test_a_log_that_is_rotated_is_followed_again(log: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        followed(log).poll()
    append(log, log_lines(100))
    run = followed(log)
    assert run.poll()
    log.rename(log.with_suffix(".1"))
    assert run.poll()
    assert not run.poll()  # said once
    assert run.problem == f"{log} cannot be read: No such file or directory"
    assert run.run_log is not None
    assert run.run_log.steps.iteration[-1] == 100
    append(log, log_lines(50))
    assert run.poll()
    assert (run.problem, run.generation) == ("", 1)
    assert run.run_log is not None
    assert run.run_log.steps.iteration[-1] == 50


def test_a_journal_with_a_torn_last_line_is_read(tmp_path: Path) -> None:
    journal_file = write_run(tmp_path, finished_run()) / journal.FILE_NAME
    with journal_file.open("a") as file:
        file.write('{"kind":"step","it')
    run = FollowedRun(str(tmp_path))
    run.poll()
    run.poll(max_s=0.5)
    assert run.read_share == 1
    assert run.run_log is not None


def test_a_trainer_may_compile_for_long_before_its_first_line(log: Path) -> None:
    append(log, ["tokens per iteration will be: 16,384", "compiling the model... (takes a ~minute)"])
    now = log.stat().st_mtime
    wall_clock = Clock()
    wall_clock.now = now + 1
    run = FollowedRun(str(log), clock=Clock(), wall_clock=wall_clock)
    run.poll()
    assert (run.is_live, run.run_log) == (True, None)
    wall_clock.now = now + 1000
    run.poll()
    assert (run.is_live, run.run_log) == (False, None)
    append(log, log_lines(100))
    wall_clock.now = log.stat().st_mtime
    run.poll()
    assert run.is_live
    assert run.run_log is not None


def test_every_finding_is_reported_once(log: Path) -> None:
    append(log, log_lines(600))
    run = followed(log)
    first = news(run)
    assert "eval-spikes" in ids(first)
    assert len(ids(first)) == len(set(ids(first)))
    assert ids(news(run)) == []
    append(log, log_lines(1200, 610)[2:])
    second = news(run)
    assert not set(ids(first)) & set(ids(second))
    assert "eval-spikes" in [finding.id for finding in second.explanation.findings]  # all of them are there


def test_evaluations_are_reported_once_and_in_order(log: Path) -> None:
    append(log, log_lines(300))
    run = followed(log)
    assert [done.iteration for done in news(run).evaluations] == [0, 250]
    assert news(run).evaluations == ()
    append(log, log_lines(800, 310)[2:])
    update = news(run)
    assert [done.iteration for done in update.evaluations] == [500, 750]
    assert update.iteration == 800


def test_evaluations_after_a_resume_are_reported(log: Path) -> None:
    """Also those of iterations that were evaluated before it."""
    append(log, log_lines(600))
    run = followed(log)
    assert [done.iteration for done in news(run).evaluations] == [0, 250, 500]
    append(log, ["Resuming training from out", *log_lines(800, 500)[2:]])
    assert [done.iteration for done in news(run).evaluations] == [500, 750]


def test_a_finding_that_gets_worse_is_reported_again(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassgpt.explain import explanation as explanation_module
    from glassgpt.record.finding import Finding, Severity
    from glassgpt.runs.analysis import Analysis

    severities: Iterator[Severity] = iter(("advice", "advice", "problem", "warning", "problem"))

    def rule(analysis: Analysis) -> Finding:
        return written_finding("bad", next(severities), "it is bad", "5 of 10", "", "")

    monkeypatch.setattr(explanation_module, "RULES", (rule,))
    append(log, log_lines(100))
    run, reported = followed(log), []
    for at in range(110, 160, 10):
        reported.append(ids(news(run)))
        append(log, log_lines(at, at)[2:])
    assert reported == [["bad"], [], ["bad"], [], []]


def test_a_nan_loss_is_reported_when_it_comes(log: Path) -> None:
    append(log, log_lines(600))
    run = followed(log)
    assert "loss-nan" not in ids(news(run))
    append(log, ["iter 610: loss nan, time 168.00ms, mfu 2.21%"])
    update = news(run)
    assert (update.findings[0].id, update.findings[0].severity) == ("loss-nan", "problem")
    append(log, ["iter 620: loss nan, time 168.00ms, mfu 2.21%"])
    assert ids(news(run)) == []


def test_a_run_that_goes_on_has_not_ended(log: Path) -> None:
    append(log, log_lines(600))
    assert news(followed(log)).explanation.facts.ended is None
    ended = news(followed(log, is_writing=False)).explanation
    assert ended.facts.ended == "cut"
    assert ended.as_dict() == explain(read_run_log(str(log))).as_dict()


def test_the_card_the_overrides_and_the_name_are_used(log: Path) -> None:
    (overrides,) = parse_overrides(["--a.tokens_per_iteration=32768"], 1)
    append(log, log_lines(600))
    run = FollowedRun(str(log), find_card("RTX 4070 Ti"), overrides, lambda: True, name="standard input")
    explanation = news(run).explanation
    assert (explanation.log.name, explanation.facts.tokens_per_iteration) == ("standard input", 32768)
    assert any("RTX 4070 Ti" in f"{finding}" for finding in explanation.findings)
