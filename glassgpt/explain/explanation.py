"""What an expert would say about a run: facts, findings in order of importance, and a verdict.

explanation = explain_runs(read_run_logs("train.log"))
print(explanation.verdict, [finding.id for finding in explanation.findings])

A file may hold several runs. Facts, findings and verdict are of the longest; `runs` has those of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from glassgpt.estimate.cards import Card
from glassgpt.explain.registry import RULES
from glassgpt.explain.summary import compose_verdict, introduce_runs, lines_of, other_problems
from glassgpt.i18n import translate
from glassgpt.record.finding import Finding, read_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.facts import Facts
from glassgpt.runs.noise import DEFAULT_CLEAR_SHARE
from glassgpt.runs.run_log import RunLog, longest_run
from glassgpt.runs.trajectory import shows_run_start

SCHEMA_VERSION = 2  # of the JSON document; new keys do not raise it


@dataclass(frozen=True)
class Explanation:
    analysis: Analysis
    findings: list[Finding]
    verdict: list[str]  # sentences, the most important first
    runs: tuple[Explanation, ...] = ()  # every run of the file, in its order, this one too; (): only this one

    @property
    def log(self) -> RunLog:
        return self.analysis.log

    @property
    def facts(self) -> Facts:
        return self.analysis.facts

    def as_dict(self) -> dict[str, object]:
        columns = {"columns": dict(self.log.columns)} if self.log.columns else {}
        return {
            "schema_version": SCHEMA_VERSION,
            "format": self.log.trainer.id,
            **columns,
            "facts": self.facts.as_dict(),
            "findings": [finding.as_dict() for finding in self.findings],
            "verdict": self.verdict,
            "runs": [one.as_run(is_main=one.log is self.log) for one in self.runs or (self,)],
        }

    def as_run(self, is_main: bool) -> dict[str, object]:
        """One run of a file, in short: the numbers that are known, and which findings it has."""
        facts = {
            name: value
            for name, value in self.facts.as_dict().items()
            if value is not None and not isinstance(value, list)
        }
        return {
            "trainer": self.log.trainer.id,
            "name": self.log.run_name,
            "stage": self.log.stage,
            "is_main": is_main,
            "first_line": self.log.first_line or None,
            "last_line": self.log.last_line or None,
            "facts": facts,
            "findings": [finding.id for finding in self.findings],
        }


def explain(run_log: RunLog, card: Card | None = None) -> Explanation:
    """`card`: the one it ran on, if the user names it (--gpu)."""
    analysis = Analysis(run_log, card)
    findings = [finding for rule in RULES if (finding := rule(analysis)) is not None]
    # Those that a GlassGPT run made itself, while it trained.
    findings += [read_finding(record) for record in run_log.journal_findings]
    findings.sort(key=lambda finding: finding.severity_level, reverse=True)
    verdict = compose_verdict(run_log, analysis.facts, findings)
    return Explanation(analysis, findings, verdict)


def explain_runs(
    run_logs: Sequence[RunLog], card: Card | None = None, main: RunLog | None = None
) -> Explanation:
    """Of all runs of one file. `main`: the one that the explanation is about, if that is not the longest."""
    main = main or longest_run(run_logs)
    if len(run_logs) == 1:
        return explain(main, card)
    explanations = tuple(explain(run_log, card) for run_log in run_logs)
    about = next(one for one in explanations if one.log is main)
    others = [one for one in explanations if one is not about]
    problems = other_problems([(one.log, one.facts, one.findings) for one in others])
    intro = (
        _introduce_results(about, explanations)
        or _introduce_parts(main, run_logs)
        or introduce_runs(main, run_logs)
    )
    told = list(about.verdict)
    if better := _better_run(about, others):
        told = [one for one in told if one != translate("verdict.nothing_wrong")] + [better]
    verdict = [intro, *told, *problems]
    return replace(about, verdict=verdict, runs=explanations)


def _introduce_results(about: Explanation, explanations: Sequence[Explanation]) -> str:
    """Of a table with one row for each run: results, not their course. Empty for any other."""
    if about.log.run_name is None or any(len(one.log.steps) > 1 for one in explanations):
        return ""
    losses = {one.log.label: one.facts.best_val_loss for one in explanations}
    known = {name: loss for name, loss in losses.items() if loss is not None}
    values = {"runs": len(explanations), "name": about.log.label}
    if len(known) < 2 or len({one.facts.val_metric for one in explanations}) > 1:
        return translate("verdict.results", **values)
    best = min(known, key=lambda name: known[name])
    return translate("verdict.results_with_best", **values, best=best, loss=known[best])


def _better_run(about: Explanation, others: Sequence[Explanation]) -> str:
    """Which other run of the file has the best validation result, where that is clearly better."""

    def measure(one: Explanation) -> tuple[object, ...]:
        log = one.log
        return one.facts.val_metric, log.trainer.id, log.stage, log.setup.settings.get("dataset")

    own = about.facts.best_val_loss
    alike = [one for one in others if one.facts.best_val_loss is not None and measure(one) == measure(about)]
    if own is None or not alike or about.log.trainer.reads_any_log:
        return ""  # two losses of a loop that is not known may be of anything
    if any(one.log.parts > 1 or not shows_run_start(one.log) for one in (about, *alike)):
        return ""  # the parts of one process, or of a resumed run
    best = min(alike, key=lambda one: one.facts.best_val_loss or math.inf)
    loss = best.facts.best_val_loss or 0.0
    if own - loss < DEFAULT_CLEAR_SHARE * abs(own):
        return ""
    name = best.log.run_name or best.log.label
    return translate("verdict.better_run", name=name + lines_of(best.log), best=loss, own=own)


def _introduce_parts(main: RunLog, run_logs: Sequence[RunLog]) -> str:
    """Where `main` is a part of a process, or one of several runs of equal length: which one. Else empty."""
    lengths = [one.length for one in run_logs if one.parts == main.parts]
    equal = lengths.count(main.length) if main.length == max(lengths) else 1
    lines = lines_of(main)
    if main.parts > 1:
        intro = translate("verdict.parts", parts=main.parts)
        if main.runs_in_file > 1:
            intro = translate("verdict.parts_of_several_runs", runs=main.runs_in_file, parts=main.parts)
        about = (
            translate("verdict.part_of_equals", equal=equal, lines=lines)
            if equal > 1
            else translate("verdict.longest_part", parts=main.parts, lines=lines)
        )
        return f"{intro} {about}"
    is_alike = len({(one.trainer.id, one.stage, one.run_name) for one in run_logs}) == 1
    if equal > 1 and is_alike:
        return translate("verdict.several_equal_runs", runs=main.runs_in_file, equal=equal, lines=lines)
    return ""
