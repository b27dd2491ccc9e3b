"""Over all logs of the corpus: what findings say agrees with itself and with the facts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from make import workplace, write_logs

from glassgpt.explain.explanation import explain
from glassgpt.i18n import message_values
from glassgpt.record.finding import PARTS
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.run_log import RunLog


def every_run_log() -> Iterator[tuple[str, RunLog]]:
    with workplace():
        write_logs(None)
        for path in sorted(Path("logs").iterdir()):
            yield path.stem, read_run_log(str(path))


def test_one_name_has_one_value_in_a_finding() -> None:
    conflicts = []
    for name, run_log in every_run_log():
        for finding in explain(run_log).findings:
            seen: dict[str, object] = {}
            for part in PARTS:
                for message in finding.text[part]:
                    for key, value in message_values([message]).items():
                        if seen.setdefault(key, value) != value:
                            conflicts.append((name, finding.id, key, seen[key], value))
    assert conflicts == []


def test_findings_of_a_run_do_not_contradict_each_other() -> None:
    contradictions, subjects = [], set()
    for name, run_log in every_run_log():
        explanation = explain(run_log)
        facts = explanation.facts
        stated: dict[str, object] = {"how the run ended": facts.ended, "best iteration": facts.best_val_step}
        for finding in explanation.findings:
            for subject, value in finding.claims.items():
                subjects.add(subject)
                if stated.setdefault(subject, value) != value:
                    contradictions.append((name, finding.id, subject, stated[subject], value))
    assert contradictions == []
    assert len(subjects) >= 5
