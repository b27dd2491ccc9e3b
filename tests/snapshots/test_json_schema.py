"""`--schema` describes what explain, compare and plan print as JSON, over the corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from commands import nanogpt_log
from condense import write_inputs
from jsonschema import Draft202012Validator
from make import compare_items, document, plan_items, run_command, workplace

from glassgpt.runs.facts import Facts

COMMANDS = ("explain", "compare", "plan")
MAX_PART_CHARS = 210  # about two lines of a terminal


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with workplace() as folder:
        write_inputs()
        yield folder


@pytest.fixture(scope="module")
def explained(place: Path) -> dict[str, Any]:
    texts = {
        "metrics.csv": "step,train_loss,val_loss\n" + "".join(f"{i},{4 - i / 100},\n" for i in range(60)),
        "nonfinite.log": "".join(
            f"iter {at}: loss {loss}, time 10.00ms, mfu 1.00%\n"
            for at, loss in enumerate(("2.5", "2.4", "inf", "nan", "nan"))
        ),
        "stopped.log": nanogpt_log() + "Traceback (most recent call last):\nKeyboardInterrupt\n",
        "crashed.log": nanogpt_log() + "Traceback (most recent call last):\nRuntimeError: a bad file\n",
        "two.log": nanogpt_log(600) + nanogpt_log(300),
    }
    for name, text in texts.items():
        Path(name).write_text(text)
    logs = [*sorted(Path("logs").iterdir()), *sorted(Path("runs").iterdir()), *texts]
    names = ["demo:gpu", "demo:cpu", *map(str, logs)]
    return {name: document(["explain", name])["document"] for name in names}


def printed_schema(command: str) -> dict[str, Any]:
    result = run_command([command, "--schema"])
    assert (result.code, result.err) == (0, "")
    return dict(json.loads(result.out))


def closed(schema: Any) -> Any:
    """The schema without room for keys that it does not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: closed(item) for key, item in schema.items()}
    return parts | {"additionalProperties": False} if is_object(schema) else parts


def is_object(schema: dict[str, Any]) -> bool:
    return isinstance(schema.get("properties"), dict) and "required" in schema


def errors(command: str, documents: dict[str, Any]) -> list[str]:
    validator = Draft202012Validator(closed(printed_schema(command)))
    return [
        f"{name}: {error.json_path}: {error.message[:200]}"
        for name, one in documents.items()
        for error in validator.iter_errors(one)
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_schema_is_one_and_describes_every_property(command: str) -> None:
    schema = printed_schema(command)
    Draft202012Validator.check_schema(schema)
    undescribed, properties = list[str](), 0

    def visit(part: Any, at: str) -> None:
        nonlocal properties
        if isinstance(part, list):
            for index, item in enumerate(part):
                visit(item, f"{at}/{index}")
        if not isinstance(part, dict):
            return
        if is_object(part):
            properties += len(part["properties"])
            undescribed.extend(
                f"{at}/{name}" for name, one in part["properties"].items() if not one.get("description")
            )
        for name, item in part.items():
            visit(item, f"{at}/{name}")

    visit(schema, "")
    assert undescribed == []
    assert properties > 20


def test_explanations(explained: dict[str, Any]) -> None:
    assert len(explained) > 40
    assert errors("explain", explained) == []
    assert "columns" in explained["metrics.csv"]
    assert len(explained["two.log"]["runs"]) == 2


def test_every_fact_is_in_the_schema() -> None:
    facts = printed_schema("explain")["$defs"]["facts"]
    assert list(facts["properties"]) == [field.name for field in fields(Facts)]


def test_comparisons(place: Path) -> None:
    logs = {path.stem: str(path) for path in Path("logs").iterdir()}
    documents = {name: answer["document"] for name, answer in compare_items(logs, text=False)}
    assert len(documents) > 10
    assert errors("compare", documents) == []


def test_plans(place: Path) -> None:
    answers = dict(plan_items(text=False, cards=False))
    documents = {name: one["document"] for name, one in answers.items() if one["exit_code"] == 0}
    documents["cards"] = document(["plan", "--cards"])["document"]
    documents["not probed"] = document(["plan", "gpt2_124m", "--gpu=h100", "--probe"])["document"]
    assert len(documents) > 10
    assert errors("plan", documents) == []


def test_an_unknown_or_missing_key_is_noticed(explained: dict[str, Any]) -> None:
    one = explained["demo:gpu"]
    finding = {**one["findings"][0], "surprise": 1}
    (surprise,) = errors("explain", {"changed": {**one, "findings": [finding]}})
    assert "surprise" in surprise
    (missing,) = errors("explain", {"changed": {key: one[key] for key in one if key != "verdict"}})
    assert "verdict" in missing


def test_the_schema_is_printed_by_itself() -> None:
    for line in (
        "explain --schema x.log",
        "compare --schema --json",
        "plan --schema --n_layer=3",
        "plan gpt2_124m --schema",
    ):
        result = run_command(line.split())
        assert (result.code, result.out) == (2, "")
        assert "--schema is printed by itself" in result.err


def test_each_part_of_a_finding_is_at_most_two_lines(explained: dict[str, Any]) -> None:
    too_long = [
        (name, finding["id"], part, len(finding[part]))
        for name, one in explained.items()
        for finding in one["findings"]
        for part in ("title", "evidence", "explanation", "advice")
        if len(finding[part]) > MAX_PART_CHARS
    ]
    assert too_long == []


def test_suggested_commands_are_values_of_their_finding(explained: dict[str, Any]) -> None:
    """Whatever a finding suggests is a value or a word of its own advice."""
    suggested = {}
    for name, one in explained.items():
        for finding in one["findings"]:
            for entry in finding["commands"]:
                suggested[finding["id"]] = name
                for setting, value in entry.get("settings", {}).items():
                    is_value = value in finding["values"].values()
                    assert is_value or f"{setting}={value}" in finding["advice"], (name, finding["id"], entry)
                assert entry.get("command", "") in finding["values"].values() or "settings" in entry
    resume = [{"command": "python train.py … --init_from=resume"}]
    for name, id in (("stopped.log", "interrupted"), ("crashed.log", "crashed")):
        assert [one["commands"] for one in explained[name]["findings"] if one["id"] == id] == [resume]
    assert suggested.keys() >= {"eval-spikes", "overfitting", "lr-schedule-mismatch", "eval-noise"}
