"""The tables of a report, as rows of text: what took the time, settings with their reasons, the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassgpt import format
from glassgpt.i18n import say
from glassgpt.runs.run_log import RunLog
from glassgpt.show.facts_table import TableRow

_MAX_CELL_CHARS = 400  # characters


def setting_rows(history: RunLog) -> list[TableRow]:
    """What the log says was set, and where GlassGPT chose a value itself, why."""
    choices = _choices(history.setup.machine.get("choices"))
    rows = [
        TableRow(
            name, choices[name].value if name in choices else truncate_cell(value), _reason(choices, name)
        )
        for name, value in history.setup.settings.items()
    ]
    return [row for name, row in choices.items() if name not in history.setup.settings] + rows


def machine_rows(history: RunLog) -> list[TableRow]:
    """The card, the versions, the data: nested values by their dotted names."""
    setup = history.setup
    machine = {name: value for name, value in setup.machine.items() if name != "choices"}
    rows = [TableRow("device", truncate_cell(setup.device_name))] if setup.device_name else []
    rows += [] if setup.world_size is None else [TableRow("processes", str(setup.world_size))]
    return rows + _flattened(machine) + _flattened(setup.data, "data")


def profile_table(record: Mapping[str, Any]) -> tuple[str, list[TableRow]]:
    """A look into some updates: a sentence about it, and what took the time."""
    updates = max(1, int(record["updates"]))
    of = say("kernels") if record["of"] == "kernels" else say("operators")
    caption = say(
        "Updates {first} to {last} under PyTorch's profiler, {time} each; {of} ran for {busy} of it. "
        "The trace is {trace}, for {place}.",
        first=f"{record['from_iter'] + 1:,}",
        last=f"{record['from_iter'] + updates:,}",
        time=format.format_ms(record["wall_ms"] / updates),
        of=of,
        busy=f"{record['busy']:.0%}",
        trace=truncate_cell(record["trace"]),
        place="ui.perfetto.dev",
    )
    rows = []
    for piece in record["top"]:
        time, calls = format.format_ms(piece["ms"] / updates), f"{piece['calls'] / updates:.4g}"
        reason = say("{time} and {calls} calls per update", time=time, calls=calls)
        rows.append(TableRow(truncate_cell(piece["name"]), f"{piece['share']:.1%}", reason))
    return caption, rows


def truncate_cell(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_CELL_CHARS else text[: _MAX_CELL_CHARS - 1] + "…"


def _flattened(values: Mapping[str, object], above: str = "") -> list[TableRow]:
    rows: list[TableRow] = []
    for name, value in values.items():
        path = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping):
            rows += _flattened(value, path)
        elif value is not None:
            rows.append(TableRow(path, truncate_cell(value)))
    return rows


def _choices(listed: object) -> dict[str, TableRow]:
    """The record may be anyone's, so an entry that is not one is passed over."""
    if not isinstance(listed, list | tuple):
        return {}
    entries = [entry for entry in listed if isinstance(entry, Mapping) and "name" in entry]
    return {
        str(entry["name"]): TableRow(
            str(entry["name"]),
            truncate_cell(entry.get("value", "")),
            truncate_cell(entry.get("reason") or ""),
        )
        for entry in entries
    }


def _reason(choices: Mapping[str, TableRow], name: str) -> str:
    return choices[name].reason if name in choices else ""
