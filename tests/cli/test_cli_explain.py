"""`glass explain`: what it refuses, and what it tells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import Capture, chdir_with_log, error_lines, nanogpt_log, parse_strict_json, stdout_of

from glassgpt.runs.facts import Facts

# As the issue names them.
# fmt: off
FACTS = [
    "iterations_logged", "first_iteration", "last_iteration", "log_interval", "tokens_per_iteration",
    "parameters", "steady_ms", "steady_p95_ms", "first_iteration_ms", "startup_ms", "eval_steps",
    "eval_overhead_ms", "checkpoint_steps", "estimated_total_s", "overhead_share", "tokens_per_s",
    "mfu_reported_steady", "flops_per_token", "achieved_tflops",
    "device_count", "data_parallel_size", "achieved_tflops_per_device", "val_metric", "best_val_loss",
    "best_val_step", "final_val_loss", "final_train_loss", "loss_first", "loss_last", "nan_step",
    "segments", "ended", "regimes", "regime_total_s", "eval_overhead_typical_ms", "seconds_by_phase",
    "wander_ms", "loss_ends", "wall_s", "stamped_s", "total_s", "metrics",
]
# fmt: on


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return chdir_with_log(tmp_path, monkeypatch)


# --- what is refused ---


def test_not_a_log_names_the_formats_it_knows(capsys: Capture) -> None:
    Path("poem.txt").write_text("Shall I compare thee to a summer's day?\n" * 5)
    (problem,) = error_lines(capsys, "explain", "poem.txt")
    assert problem.startswith("poem.txt is not a training log")
    for name in ("nanoGPT", "build-nanogpt", "llm.c", "nanochat", "modded-nanogpt", "litgpt", "Hugging Face"):
        assert name in problem


@pytest.mark.parametrize("content", [b"", b"\n\n\n", b"\x00\xff" * 1000, b"{}", b"[1, 2]", b'{"kind": 5}'])
def test_bytes_that_are_no_log(content: bytes, capsys: Capture) -> None:
    Path("some.bin").write_bytes(content)
    (problem,) = error_lines(capsys, "explain", "some.bin")
    assert "some.bin" in problem


def test_nothing_there(capsys: Capture) -> None:
    assert "nothere" in error_lines(capsys, "explain", "nothere")[0]
    assert "n.log/x" in error_lines(capsys, "explain", "n.log/x")[0]
    Path("folder").mkdir()
    (problem,) = error_lines(capsys, "explain", "folder")
    assert "journal.jsonl" in problem
    assert "glass runs" in problem
    assert error_lines(capsys, "explain", "x" * 300)
    assert error_lines(capsys, "explain", "")


@pytest.mark.parametrize("flags", [[], ["--json"], ["--watch"], ["--full"]])
def test_an_argument_is_needed(flags: list[str], capsys: Capture) -> None:
    (problem,) = error_lines(capsys, "explain", *flags)
    assert "-" in problem


def test_one_at_a_time(capsys: Capture) -> None:
    (problem,) = error_lines(capsys, "explain", "n.log", "n.log")
    assert "glass compare" in problem


@pytest.mark.parametrize("flag", ["--fulll", "--ful", "--fulll=1", "--ful=True"])
def test_an_unknown_flag_gets_the_nearest(flag: str, capsys: Capture) -> None:
    (problem,) = error_lines(capsys, "explain", "n.log", flag)
    assert "unknown" in problem
    assert "did you mean --full?" in problem


@pytest.mark.parametrize("flag", ["--wandb", "--wandb=1"])
def test_an_unknown_flag_like_no_other(flag: str, capsys: Capture) -> None:
    (problem,) = error_lines(capsys, "explain", "n.log", flag)
    assert "unknown setting --wandb" in problem


def test_a_short_flag_is_no_file(capsys: Capture) -> None:
    problems = error_lines(capsys, "explain", "n.log", "-j")
    assert any("unknown" in problem and "-j" in problem for problem in problems)


def test_an_unknown_card_gets_the_nearest(capsys: Capture) -> None:
    (problem,) = error_lines(capsys, "explain", "n.log", "--gpu=4070ty")
    assert "--gpu=4070ty" in problem
    assert "RTX 4070 Ti" in problem


def test_an_unknown_language(capsys: Capture) -> None:
    for language in ("fr", "EN", "../en", "hi_IN"):
        (problem,) = error_lines(capsys, "explain", "n.log", f"--lang={language}")
        assert "en, hi, ar" in problem


def test_all_problems_at_once(capsys: Capture) -> None:
    problems = error_lines(
        capsys,
        "explain",
        "n.log",
        "o.log",
        "--lang=fr",
        "--gpu=foo",
        "--bar=1",
        "--json=maybe",
        "--a.n_layr=3",
    )
    text = "\n".join(problems)
    for part in ("glass compare", "--lang=fr", "--gpu=foo", "--bar", "--json=maybe", "--a.n_layr"):
        assert part in text


def test_overrides_of_a_run_that_is_not_given(capsys: Capture) -> None:
    (problem,) = error_lines(capsys, "explain", "n.log", "--b.n_layer=3")
    assert "--b.n_layer" in problem


def test_watching_checks_first_too(capsys: Capture) -> None:
    assert error_lines(capsys, "explain", "nothere", "--watch")
    Path("folder").mkdir()
    assert error_lines(capsys, "explain", "folder", "--watch")
    assert error_lines(capsys, "explain", "n.log", "--watch", "--a.nonsense=1")


# --- output ---


def test_verdict_findings_facts_charts_in_this_order(capsys: Capture) -> None:
    text = stdout_of(capsys, "explain", "n.log")
    order = ["n.log", "A nanoGPT run", "[eval-spikes]", "Raise eval_interval", "not known", "16,384",
             "168.3 ms", "loss: training in dots", "where the time went"]  # fmt: skip
    place = 0
    for part in order:
        place = text.index(part, place)
    assert "what the lines mean" not in text


def test_a_sentence_about_what_the_log_does_not_say(capsys: Capture) -> None:
    plain = parse_strict_json(stdout_of(capsys, "explain", "n.log", "--json"))
    for words in (["--a.tokens_per_iteration=32768"], ["--a.tokens_per_iteration", "32768"]):
        given = parse_strict_json(stdout_of(capsys, "explain", "n.log", "--json", *words))
        assert given["facts"]["tokens_per_iteration"] == 32768
        assert given["facts"]["tokens_per_s"] == pytest.approx(2 * plain["facts"]["tokens_per_s"])


def test_the_card_changes_what_mfu_is_worth(capsys: Capture) -> None:
    document = parse_strict_json(stdout_of(capsys, "explain", "n.log", "--json", "--gpu=RTX 4070 Ti"))
    assert any("RTX 4070 Ti" in json.dumps(finding) for finding in document["findings"])


def test_json_is_strict_and_complete(capsys: Capture) -> None:
    document = parse_strict_json(stdout_of(capsys, "explain", "n.log", "--json"))
    assert list(document) == ["schema_version", "format", "facts", "findings", "verdict", "runs"]
    assert document["format"] == "nanogpt"
    assert sorted(document["facts"]) == sorted(FACTS) == sorted(Facts.__dataclass_fields__)
    assert document["facts"]["eval_steps"] == [0, 250, 500]
    assert document["facts"]["segments"] == 1
    assert document["findings"]
    for finding in document["findings"]:
        assert list(finding) == [
            "id",
            "severity",
            "title",
            "evidence",
            "explanation",
            "advice",
            "more",
            "values",
            "at",
            "lines",
            "claims",
            "commands",
        ]
        assert finding["severity"] in ("info", "advice", "warning", "problem")
        assert finding["title"]
        assert finding["evidence"]
    rank = ["problem", "warning", "advice", "info"]
    assert [rank.index(finding["severity"]) for finding in document["findings"]] == sorted(
        rank.index(finding["severity"]) for finding in document["findings"]
    )
    assert all(isinstance(sentence, str) for sentence in document["verdict"])


def test_json_writes_nan_as_a_word(capsys: Capture) -> None:
    log = (
        nanogpt_log()
        + "step 750: train loss inf, val loss nan\niter 750: loss nan, time 168.00ms, mfu 2.20%\n"
    )
    Path("nan.log").write_text(log)
    facts = parse_strict_json(stdout_of(capsys, "explain", "nan.log", "--json"))["facts"]
    assert (facts["loss_last"], facts["final_val_loss"], facts["final_train_loss"]) == ("nan", "nan", "inf")
    assert facts["nan_step"] == 750


@pytest.mark.parametrize("language", ["hi", "ar"])
def test_facts_do_not_depend_on_the_language(language: str, capsys: Capture) -> None:
    here, there = (
        parse_strict_json(stdout_of(capsys, "explain", "n.log", "--json", f"--lang={name}"))
        for name in ("en", language)
    )
    assert here["facts"] == there["facts"]
    assert [finding["id"] for finding in here["findings"]] == [finding["id"] for finding in there["findings"]]
    assert here["verdict"] != there["verdict"]


def test_the_locale_chooses_the_language(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "hi_IN.UTF-8")
    here = parse_strict_json(stdout_of(capsys, "explain", "n.log", "--json"))
    assert here == parse_strict_json(stdout_of(capsys, "explain", "n.log", "--json", "--lang=hi"))
    assert here != parse_strict_json(stdout_of(capsys, "explain", "n.log", "--json", "--lang=en"))


def test_full_adds_the_glossary_with_values_of_this_log(capsys: Capture) -> None:
    text = stdout_of(capsys, "explain", "n.log", "--full")
    glossary = text[text.index("what the lines mean") :]
    last = nanogpt_log().splitlines()[-1]
    number, loss, ms, mfu = re.split(r"[:,] ", last)
    for piece in (number, loss, ms, mfu, "step 500: train loss 1.5750, val loss 1.6250"):
        assert f"\n{piece}\n" in glossary
    assert "312 TFLOP/s" in glossary


def test_demo_explains_a_log_that_is_shipped(capsys: Capture) -> None:
    assert stdout_of(capsys, "explain", "--demo") == stdout_of(capsys, "explain", "demo:gpu")
    facts = parse_strict_json(stdout_of(capsys, "explain", "--demo", "--json"))["facts"]
    assert facts["best_val_loss"] == 1.4576
    assert "--demo" in stdout_of(capsys, "explain", "--help")
    (problem,) = error_lines(capsys, "explain", "--demo", "train.log")
    assert "train.log" in problem
