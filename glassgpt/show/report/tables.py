"""The tables of a report, as rows of text: what took the time, settings with their reasons, the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassgpt import format
from glassgpt.i18n import say
from glassgpt.runs.run_log import History
from glassgpt.show.facts_table import Row

_MAX_CELL = 400  # characters


def setting_rows(history: History) -> list[Row]:
    """What the log says was set, and where GlassGPT chose a value itself, why."""
    choices = _choices(history.setup.machine.get("choices"))
    rows = [
        Row(name, choices[name].value if name in choices else plain(value), _reason(choices, name))
        for name, value in history.setup.settings.items()
    ]
    return [row for name, row in choices.items() if name not in history.setup.settings] + rows


def machine_rows(history: History) -> list[Row]:
    """The card, the versions, the data: nested values by their dotted names."""
    setup = history.setup
    machine = {name: value for name, value in setup.machine.items() if name != "choices"}
    rows = [Row("device", plain(setup.device_name))] if setup.device_name else []
    rows += [] if setup.world_size is None else [Row("processes", str(setup.world_size))]
    return rows + _flattened(machine) + _flattened(setup.data, "data")


def profile_table(record: Mapping[str, Any]) -> tuple[str, list[Row]]:
    """A look into some updates: a sentence about it, and what took the time."""
    updates = max(1, int(record["updates"]))
    of = say("kernels") if record["of"] == "kernels" else say("operators")
    caption = say(
        "Updates {first} to {last} under PyTorch's profiler, {time} each; {of} ran for {busy} of it. "
        "The trace is {trace}, for {place}.",
        first=f"{record['from_iter'] + 1:,}",
        last=f"{record['from_iter'] + updates:,}",
        time=format.milliseconds(record["wall_ms"] / updates),
        of=of,
        busy=f"{record['busy']:.0%}",
        trace=plain(record["trace"]),
        place="ui.perfetto.dev",
    )
    rows = []
    for piece in record["top"]:
        time, calls = format.milliseconds(piece["ms"] / updates), f"{piece['calls'] / updates:.4g}"
        reason = say("{time} and {calls} calls per update", time=time, calls=calls)
        rows.append(Row(plain(piece["name"]), f"{piece['share']:.1%}", reason))
    return caption, rows


def plain(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…"


def _flattened(values: Mapping[str, object], above: str = "") -> list[Row]:
    rows: list[Row] = []
    for name, value in values.items():
        path = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping):
            rows += _flattened(value, path)
        elif value is not None:
            rows.append(Row(path, plain(value)))
    return rows


def _choices(listed: object) -> dict[str, Row]:
    """The record may be anyone's, so an entry that is not one is passed over."""
    if not isinstance(listed, list | tuple):
        return {}
    entries = [entry for entry in listed if isinstance(entry, Mapping) and "name" in entry]
    return {
        str(entry["name"]): Row(
            str(entry["name"]), plain(entry.get("value", "")), plain(entry.get("reason") or "")
        )
        for entry in entries
    }


def _reason(choices: Mapping[str, Row], name: str) -> str:
    return choices[name].reason if name in choices else ""
