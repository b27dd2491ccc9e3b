"""What the advice of findings says to change, as data."""

from __future__ import annotations

import re
from pathlib import Path

from babel.messages.pofile import read_po

import glassgpt
from glassgpt.explain.explanation import explain_runs
from glassgpt.i18n import say
from glassgpt.record.suggested_commands import _SETTINGS, suggested_commands
from glassgpt.runs.reading import read_run_logs

# Advice that names a setting, and does not say to change it.
NO_SUGGESTION = {
    "mfu-wrong-peak.advice.name_card",  # a flag of glass explain, with an example
    "oom.advice.fragmented",  # a variable of the environment
    "oom.advice.largest_model",  # a condition
    "tracker-behind.advice",
    "tracker-failed.advice",  # commands for a run whose name is not known
}


def test_settings_of_the_demo() -> None:
    commands = {one.id: one.commands for one in explain_runs(read_run_logs("demo:gpu")).findings}
    assert commands["overfitting"] == [{"settings": {"max_iters": 1750, "lr_decay_iters": 1750}}]
    assert commands["eval-spikes"] == [
        {"settings": {"eval_interval": 1000}},
        {"settings": {"eval_iters": 50}},
    ]
    assert commands["startup-compile"] == [{"command": "--compile=False"}]
    assert commands["mfu-dip-is-eval"] == []


def test_alternatives_are_separate_and_what_belongs_together_is_not() -> None:
    either = say("lr-schedule-mismatch.advice.decay_or_stop", end_iteration=5000, decay_iterations=2000)
    assert suggested_commands([either]) == [
        {"settings": {"lr_decay_iters": 5000}},
        {"settings": {"max_iters": 2000}},
    ]
    both = say("oom.advice.fitting_batch", new_batch_size=4, new_accumulation_steps=40)
    assert suggested_commands([both]) == [{"settings": {"batch_size": 4, "gradient_accumulation_steps": 40}}]


def test_a_resume_command() -> None:
    advice = say("interrupted.advice.resume", saved_iteration=500, command="-y 1")
    assert suggested_commands([advice]) == [{"command": "-y 1"}]
    assert suggested_commands([say("still-improving.advice.continue", command="")]) == []


def test_advice_that_names_a_setting_suggests_it() -> None:
    """The table of settings and the catalogue name the same messages and the same values."""
    path = Path(glassgpt.__file__).parent / "locale/en/LC_MESSAGES/glassgpt.po"
    with path.open("rb") as file:
        advice = {str(one.id): str(one.string) for one in read_po(file) if ".advice" in str(one.id)}
    # "eval_interval={new}", "{setting}: {old} -> {new}"
    names_setting = re.compile(r"(?<![\w.])[a-zA-Z]\w*=[\w{]|_setting\}: \{")
    named = {key for key, text in advice.items() if names_setting.search(text)}
    assert named - NO_SUGGESTION == set(_SETTINGS) & named
    assert set(_SETTINGS) <= advice.keys()
    for key, alternatives in _SETTINGS.items():
        for part in (part for settings in alternatives for pair in settings.items() for part in pair):
            if isinstance(part, str) and part.startswith("{"):
                assert part[:-1] in advice[key], (key, part)
