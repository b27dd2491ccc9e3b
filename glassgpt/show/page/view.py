"""All that the page says about one run, as one JSON document. The page of a live run and the offline file of
`glass report` show the same.

    view = make_view(Analysis(run_log), findings, "quickstart")

Everything in it is plain text and numbers, in the current language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from glassgpt.explain.summary import compose_status, compose_verdict
from glassgpt.explain.watch import FollowedRun
from glassgpt.files import abbreviate_home
from glassgpt.format import format_ms
from glassgpt.i18n import RIGHT_TO_LEFT, current_language, translate
from glassgpt.record import journal
from glassgpt.record.finding import Finding, capitalized
from glassgpt.record.run_dir import CHECKPOINTS_DIR
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.progress import Progress, progress_of
from glassgpt.runs.reading import source_path
from glassgpt.runs.run_log import RunLog
from glassgpt.sanitize import sanitize_keeping_bidi
from glassgpt.show import facts_table
from glassgpt.show.facts_table import TableRow
from glassgpt.show.page.axes import axis_labels, knots_of
from glassgpt.show.page.learned import learned_view
from glassgpt.show.page.panels import make_panels
from glassgpt.show.page.series import curves_of
from glassgpt.show.page.time_strip import time_strip
from glassgpt.training.checkpoint.checkpoints import list_checkpoints

View = dict[str, Any]
_MAX_CELL_CHARS = 400


def view_of(followed: FollowedRun, name: str, now: float) -> View:
    """Of what was read so far; {} where that is no run yet. `now`: seconds since the epoch."""
    run_log, run = followed.run_log, followed.analysis
    if run_log is None or run is None:
        return {}
    findings = followed.explanation.findings if followed.explanation else []
    progress = progress_of(run, run_log, now, followed.changed_at)
    path = source_path(followed.source)
    is_ours = path.is_dir() and (path / journal.FILE_NAME).is_file()
    checkpoints = checkpoint_rows(path) if is_ours else []
    view = make_view(run, findings, name, progress, run_log, checkpoints)
    if followed.explanation is None:  # the rules come later: they take long in a long run
        view["verdict"] = []
    if followed.problem:
        view |= {"live": False, "sentence": cleaned(f"{followed.problem}."), "verdict": []}
    return view | {"can_request": is_ours and run_log.live and not followed.problem}


def make_view(
    run: Analysis,
    findings: Sequence[Finding],
    name: str,
    progress: Progress | None = None,
    latest: RunLog | None = None,
    checkpoints: Sequence[dict[str, Any]] = (),
) -> View:
    """`latest`: the run as read now, if `run` is of a few seconds before."""
    run_log = latest or run.log
    progress = progress or progress_of(run, run_log, 0.0, 0.0)
    language = current_language()
    panels, missing = make_panels(run, curves_of(run.log), findings)
    knots = knots_of(run, progress.planned if run_log.live else None, progress.eta_s)
    # The sentence and the figures have the state of a run that goes on.
    verdict = run_log.notes if run_log.live else compose_verdict(run_log, run.facts, findings)
    view = {
        "name": name,
        "trainer": run_log.trainer.name,
        "live": run_log.live,
        "language": language,
        "direction": "rtl" if language in RIGHT_TO_LEFT else "ltr",
        "sentence": compose_status(progress, run_log, run.facts, findings),
        "verdict": [str(sentence) for sentence in verdict],
        "figures": [asdict(row) for row in facts_table.key_figures(run.facts)],
        "findings": [_finding(finding) for finding in findings],
        "axes": axis_labels(run, knots),
        "knots": knots,
        "planned": progress.planned,
        "panels": [asdict(panel) for panel in panels],
        "missing": missing,
        "ledger": time_strip(run),
        "tables": _tables(run.log, run),
        "learned": learned_view(run),
        "samples": [{"at": at, "text": text} for at, text in run_log.samples],
        "checkpoints": list(checkpoints),
        "can_request": False,
    }
    return {part: cleaned(value) for part, value in view.items()}


def checkpoint_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Those that can be sampled from."""
    with suppress(OSError):
        changed_ns = (run_dir / CHECKPOINTS_DIR).stat().st_mtime_ns  # a checkpoint came, or was pruned
        return [{"at": at, "best": is_best} for at, is_best in _checkpoints(run_dir, changed_ns)]
    return []


@lru_cache(maxsize=256)
def _checkpoints(run_dir: Path, changed_ns: int) -> tuple[tuple[int, bool], ...]:
    listed = list_checkpoints(run_dir)
    best = listed.best
    return tuple((one.iter, best is not None and one.iter == best.iter) for one in listed.readable)


def _finding(finding: Finding) -> dict[str, Any]:

    def sentence(text: str) -> str:
        """With a full stop: a finding of the training has none, as the console's line goes on after it."""
        ends = not text or text[-1] in ".!?:।"
        return text if ends else translate("run_console.finding.action", advice=text)

    texts = {part: getattr(finding, part) for part in ("evidence", "explanation", "advice", "more")}
    return {
        "id": finding.id,
        "severity": finding.severity,
        "label": facts_table.severity_label(finding.severity),
        "title": capitalized(finding.title),
        **{part: sentence(capitalized(text)) for part, text in texts.items()},
        "at": [] if finding.at is None else [finding.at],
        "commands": finding.commands,
    }


def _tables(run_log: RunLog, run: Analysis) -> list[dict[str, Any]]:
    """The profile if there is one, facts, configuration, machine and data if the log has them."""
    made = []
    for record in run_log.profiles:
        caption, rows = facts_table.profile_caption(record), _profile_rows(record)
        made.append(("profile", translate("report.profile.title"), caption, rows, True))
    for index, (title, rows) in enumerate(facts_table.fact_groups(run.facts)):
        made.append((f"facts-{index}", title, "", rows, False))
    settings = _setting_rows(run_log)
    caption = (
        translate("report.configuration.caption") if settings else translate("report.configuration.unknown")
    )
    made.append(("configuration", translate("report.configuration.title"), caption, settings, True))
    if machine := _machine_rows(run_log):
        caption = translate("report.machine.caption")
        made.append(("machine", translate("report.machine.title"), caption, machine, True))
    return [
        {"id": id, "title": title, "caption": caption, "rows": [asdict(row) for row in rows], "code": is_code}
        for id, title, caption, rows, is_code in made
        if rows or id == "configuration"
    ]


def _setting_rows(run_log: RunLog) -> list[TableRow]:
    """The settings in the log; where GlassGPT chose a value itself, with the reason."""
    listed = run_log.setup.machine.get("choices")
    choices: dict[str, TableRow] = {}
    for entry in listed if isinstance(listed, list | tuple) else ():
        if isinstance(entry, Mapping) and "name" in entry:  # anyone may have written this journal
            name, value, reason = str(entry["name"]), entry.get("value", ""), entry.get("reason") or ""
            choices[name] = TableRow(name, _truncate(value), _truncate(reason))
    settings = run_log.setup.settings
    rows = [row for name, row in choices.items() if name not in settings]
    return rows + [choices.get(name, TableRow(name, _truncate(value))) for name, value in settings.items()]


def _machine_rows(run_log: RunLog) -> list[TableRow]:
    """The card, the versions, the dataset: nested values by their dotted names."""
    setup = run_log.setup
    machine = {name: value for name, value in setup.machine.items() if name != "choices"}
    rows = [TableRow("device", _truncate(setup.device_name))] if setup.device_name else []
    rows += [] if setup.world_size is None else [TableRow("processes", str(setup.world_size))]
    return rows + _flatten(machine) + _flatten(setup.data, "data")


def _profile_rows(record: Mapping[str, Any]) -> list[TableRow]:
    """The most expensive kernels or operators."""
    updates, rows = max(1, record["updates"]), []
    for kernel in record["top"]:
        time, calls = format_ms(kernel["ms"] / updates), f"{kernel['calls'] / updates:.4g}"
        reason = translate("report.profile.per_update", time=time, calls=calls)
        rows.append(TableRow(_truncate(kernel["name"]), f"{kernel['share']:.1%}", reason))
    return rows


def _truncate(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_CELL_CHARS else text[: _MAX_CELL_CHARS - 1] + "…"


def _flatten(values: Mapping[str, object], prefix: str = "") -> list[TableRow]:
    rows: list[TableRow] = []
    for name, value in values.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping):
            rows += _flatten(value, path)
        elif value is not None:
            rows.append(TableRow(path, _truncate(value)))
    return rows


def cleaned(value: Any) -> Any:
    """Its texts without characters that could reorder or hide what stands around them, and without the
    user's name."""
    if isinstance(value, str):
        return sanitize_keeping_bidi(abbreviate_home(value))
    if isinstance(value, dict):
        return {name: cleaned(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(inner) for inner in value]
    return value
