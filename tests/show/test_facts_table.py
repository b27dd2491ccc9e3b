"""Rows of facts."""

from __future__ import annotations

from dataclasses import replace

from run_logs import make_run_log, make_steps

from glassgpt.i18n import translate
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import ExitStatus
from glassgpt.show.facts_table import fact_groups


def test_one_total_time_and_it_says_what_it_is_of() -> None:
    facts = Analysis(make_run_log(make_steps(range(101)))).facts

    def rows(one: Facts) -> list[str]:
        keys = ("total_time", "estimated_total_time", "logged_time", "total_time_stamped", "stamped_time")
        labels = {translate(f"label.{key}"): key for key in keys}
        return [labels[row.name] for _, group in fact_groups(one) for row in group if row.name in labels]

    by_end: dict[ExitStatus, str] = {"finished": "estimated_total_time", "cut": "logged_time"}
    for ended, label in by_end.items():
        run = replace(facts, ended=ended, total_s=1000.0)
        assert rows(run) == [label]
        assert rows(replace(run, stamped_s=1030.0)) == ["total_time_stamped"], "the estimate is as good"
        assert rows(replace(run, stamped_s=1300.0)) == [label, "stamped_time"]
    assert rows(replace(facts, ended="cut", total_s=1000.0, wall_s=1000.0)) == ["total_time"]
    ledger = {"startup": 10.0, "train": 900.0, "eval": 90.0}
    assert rows(replace(facts, ended="cut", total_s=1000.0, seconds_by_phase=ledger)) == ["total_time"]


def test_a_metric_with_one_value_has_no_course() -> None:
    facts = Analysis(make_run_log(make_steps(range(101)))).facts
    course: dict[str, object] = {
        "name": "kl",
        "is_noise": False,
        "higher_is_better": None,
        "mean_of": 1,
        "mean": 0.5,
    }
    course |= {"first": 0.5, "last": 0.5, "lowest": 0.5, "highest": 0.5}
    for values, text in ((1, "0.5000"), (2, "0.5000 to 0.5000, highest 0.5000")):
        run = replace(facts, metrics=[{**course, "values": values}])
        (shown,) = [row.value for _, group in fact_groups(run) for row in group if row.name == "kl"]
        assert shown == text
