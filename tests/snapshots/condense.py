"""The part of the corpus that the tests keep: values, and one example of each finding and claim in words.

    python tests/snapshots/condense.py      # writes tests/snapshots/expected/ anew

A finding becomes [id, severity, the numbers in its text, in order]; any other sentence its numbers.
So a sentence can be worded anew without touching these files, and a changed value shows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from compare import numbers
from make import ROOT, copy_old_runs, document, mistake_items, workplace, write_logs
from make import compare_items as all_of_compare
from make import plan_items as all_of_plan

EXPECTED = Path(__file__).parent / "expected"
_TEXTS = ("title", "evidence", "explanation", "advice", "more", "claim")
_LONGEST = 24  # lists of numbers beyond this are summed up


def condensed(value: Any) -> Any:
    if isinstance(value, dict):
        if "id" in value and any(key in value for key in _TEXTS):
            return _finding(value)
        return {key: condensed(item) for key, item in value.items()}
    if isinstance(value, list):
        if len(value) > _LONGEST and all(isinstance(item, int | float) for item in value):
            return {"count": len(value), "first": value[0], "last": value[-1], "sum": sum(value)}
        return [condensed(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.10g}")
    return numbers(value) if isinstance(value, str) and " " in value else value


def _finding(value: dict[str, Any]) -> list[Any]:
    texts = [value.get(key, "") for key in _TEXTS] + list(value.get("details", []))
    return [value["id"], value.get("severity", ""), [number for text in texts for number in numbers(text)]]


def write_inputs() -> None:
    """Logs and old runs, in the current folder: what the parts read."""
    write_logs(None)
    copy_old_runs()


def _inputs() -> dict[str, str]:
    return {path.stem: str(path) for path in sorted([*Path("logs").iterdir(), *Path("runs").iterdir()])}


def explain_part() -> dict[str, Any]:
    parts = {}
    for name, path in _inputs().items():
        answer = document(["explain", path])
        answered = answer["document"]
        parts[name] = condensed({key: answered[key] for key in ("format", "facts", "findings")})
    return parts


def compare_part() -> dict[str, Any]:
    """Without the facts of each run: explain_part() has them."""
    parts = {}
    for name, answer in all_of_compare(_inputs(), text=False):
        answered = answer["document"]
        for run in answered["runs"]:
            del run["facts"]
        parts[Path(name).stem] = condensed(answered)
    return parts


def plan_part() -> dict[str, Any]:
    parts = {}
    for name, answer in all_of_plan(text=False, cards=False):
        answered = answer["document"]
        if answered is not None:
            answered.pop("config", None)
        parts[Path(name).stem] = [answer["exit_code"], condensed(answered)]
    return parts


def mistakes_part() -> dict[str, Any]:
    """How many errors each wrong command prints, and the exit code."""
    return {
        Path(name).stem: [text.count("error: "), text.rsplit("exit code ", 1)[1][0]]
        for name, text in mistake_items()
    }


def sentences_part() -> dict[str, Any]:
    """The text of each finding and claim, of the first log that has it."""
    examples: dict[str, Any] = {}
    for name, path in _inputs().items():
        for finding in document(["explain", path])["document"]["findings"]:
            examples.setdefault(finding["id"], [name, *(finding[key] for key in _TEXTS[:5])])
    for name, answer in all_of_compare(_inputs(), text=False):
        for claim in answer["document"]["verdict"]:
            examples.setdefault(
                f"compare {claim['id']}", [Path(name).stem, claim["claim"], *claim["details"]]
            )
    return examples


PARTS = {
    "sentences": sentences_part,
    "explain": explain_part,
    "compare": compare_part,
    "plan": plan_part,
    "mistakes": mistakes_part,
}


def main() -> None:
    EXPECTED.mkdir(exist_ok=True)
    with workplace():
        write_inputs()
        for name, part in PARTS.items():
            rows = [
                f"{json.dumps(key)}:{json.dumps(value, sort_keys=True, separators=(',', ':'))}"
                for key, value in sorted(part().items())
            ]
            (EXPECTED / f"{name}.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
            print(f"expected/{name}.json: {len(rows)} entries")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
