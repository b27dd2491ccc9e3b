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
