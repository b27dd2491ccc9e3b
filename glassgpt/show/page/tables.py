"""The tables of a report, as rows of text: the profile, settings with their reasons, the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassgpt.format import format_ms
from glassgpt.i18n import translate
from glassgpt.runs.run_log import RunLog
from glassgpt.show.facts_table import TableRow

_MAX_CELL_CHARS = 400


def setting_rows(run_log: RunLog) -> list[TableRow]:
    """The settings in the log; where GlassGPT chose a value itself, with the reason."""
    listed = run_log.setup.machine.get("choices")
    choices: dict[str, TableRow] = {}
    for entry in listed if isinstance(listed, list | tuple) else ():
        if isinstance(entry, Mapping) and "name" in entry:  # anyone may have written this journal
            name, value, reason = str(entry["name"]), entry.get("value", ""), entry.get("reason") or ""
            choices[name] = TableRow(name, truncate_cell(value), truncate_cell(reason))
    settings = run_log.setup.settings
    rows = [row for name, row in choices.items() if name not in settings]
    return rows + [
        choices.get(name, TableRow(name, truncate_cell(value))) for name, value in settings.items()
    ]


def machine_rows(run_log: RunLog) -> list[TableRow]:
    """The card, the versions, the dataset: nested values by their dotted names."""
    setup = run_log.setup
    machine = {name: value for name, value in setup.machine.items() if name != "choices"}
    rows = [TableRow("device", truncate_cell(setup.device_name))] if setup.device_name else []
    rows += [] if setup.world_size is None else [TableRow("processes", str(setup.world_size))]
    return rows + _flatten(machine) + _flatten(setup.data, "data")


def profile_table(record: Mapping[str, Any]) -> tuple[str, list[TableRow]]:
    """A sentence about the profiled updates, and the most expensive kernels or operators."""
    updates = max(1, int(record["updates"]))
    profiled = (
        translate("report.profile.kernels")
        if record["of"] == "kernels"
        else translate("report.profile.operators")
    )
    caption = translate(
        "report.profile.caption",
        first=record["from_iter"] + 1,
        last=record["from_iter"] + updates,
        time=record["wall_ms"] / updates,
        of=profiled,
        busy=record["busy"],
        trace=truncate_cell(record["trace"]),
        place="ui.perfetto.dev",
    )
    rows = []
    for kernel in record["top"]:
        time, calls = format_ms(kernel["ms"] / updates), f"{kernel['calls'] / updates:.4g}"
        reason = translate("report.profile.per_update", time=time, calls=calls)
        rows.append(TableRow(truncate_cell(kernel["name"]), f"{kernel['share']:.1%}", reason))
    return caption, rows


def truncate_cell(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_CELL_CHARS else text[: _MAX_CELL_CHARS - 1] + "…"


def _flatten(values: Mapping[str, object], prefix: str = "") -> list[TableRow]:
    rows: list[TableRow] = []
    for name, value in values.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping):
            rows += _flatten(value, path)
        elif value is not None:
            rows.append(TableRow(path, truncate_cell(value)))
    return rows
