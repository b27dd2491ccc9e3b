"""The options of `glass sample`: every value checked; the prompt from a flag, a file or standard input."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.cli import main
from glassgpt.errors import UserError
from glassgpt.flags import check_settings, field_types
from glassgpt.sample.sample_options import SampleOptions, find_problems, prompt_text

TEXT = "कांच का घर\nبيت من زجاج\r\n🦊 glass\n"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert main(["sample", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    return [line.removeprefix("error: ") for line in lines]


# --- options ---


def test_the_defaults_are_nanogpts() -> None:
    options = SampleOptions()
    assert find_problems(options) == []
    assert (options.num_samples, options.max_new_tokens) == (10, 500)
    assert (options.temperature, options.top_k, options.top_p, options.seed) == (0.8, 200, None, 1337)
    assert (options.init_from, options.start) == ("resume", "")


def test_the_values_an_option_may_have(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[Any], list[Any]]] = [
        ("num_samples", [1, 10**6], [0, -1]),
        ("max_new_tokens", [1, 10**6], [0, -1]),
        ("top_k", [None, 1, 10**6], [0, -1]),
        ("top_p", [None, 1e-9, 0.5, 1.0], [0.0, -0.1, 1.1, float("nan")]),
        ("temperature", [0.0, 1e-9, 1.0, 100.0], [-0.1, float("nan"), float("inf")]),
        ("seed", [0, 1, 2**63 - 1], [-1, 2**63]),
        ("device", ["auto", "cpu", "cuda", "cuda:1", "mps"], ["gpu", "cpu:1", "cuda:", ""]),
        ("start", ["", "FILE:x", "-", TEXT], ["\udcff"]),
    ]
    for name, good, bad in cases:
        with subtests.test(name):
            for value in good:
                assert find_problems(dataclasses.replace(SampleOptions(), **{name: value})) == []
            for value in bad:
                (problem,) = find_problems(dataclasses.replace(SampleOptions(), **{name: value}))
                assert problem.startswith(f"--{name}")


def test_every_option_can_be_given_as_text() -> None:
    texts = {
        "out_dir": "out",
        "init_from": "gpt2",
        "start": "x",
        "num_samples": "2",
        "max_new_tokens": "3",
        "temperature": "0.5",
        "top_k": "none",
        "top_p": "0.9",
        "seed": "7",
        "compare": "runs/b",
        "device": "cpu",
        "dtype": "bfloat16",
        "compile": "False",
        "data_dir": "data/x",
    }
    assert texts.keys() == field_types(SampleOptions).keys()
    settings, problems = check_settings(texts, SampleOptions)
    assert problems == []
    assert (settings["top_k"], settings["compile"], settings["num_samples"]) == (None, "off", 2)
    assert check_settings({"prompt": "x"}, SampleOptions) == ({"start": "x"}, [])


def test_every_mistake_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--num_samples=0", "--temperature=-1", "--top_p=2", "--seed=-1", "--device=gpu"]
    problems = refused(capsys, *wrong, "--topk=3", "--max_new_tokens=many", "--dtype=int8", "--start")
    expected = ["start", "topk", "max_new_tokens=many", "dtype=int8", "num_samples", "temperature", "top_p"]
    assert [problem for problem in problems if "--" in problem] == problems
    for name, problem in zip([*expected, "seed", "device"], problems, strict=True):
        assert f"--{name}" in problem
    assert "did you mean --top_k?" in problems[1]


def test_one_run_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "a", "b") == [
        "one run at a time, not a and b; --compare=RUN2 shows another beside it"
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a", "--out_dir=b"], "a and --out_dir=b both say which run: leave one out"),
        (["a", "--init_from=gpt2"], "--init_from=gpt2 says which model: leave out RUN and --out_dir"),
        (["--out_dir=b", "--init_from=x"], "--init_from=x says which model: leave out RUN and --out_dir"),
    ],
)
def test_two_ways_to_name_a_model_are_one_too_many(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert refused(capsys, *arguments) == [problem]


def test_help_is_for_sampling(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "--help"]) == 0
    output = capsys.readouterr().out
    for name in field_types(SampleOptions):
        assert f"--{name}" in output


# --- the prompt ---


@given(st.text().filter(lambda text: text != "-" and not text.startswith("FILE:")))
def test_a_text_is_itself(text: str) -> None:
    assert prompt_text(text) == text


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "BOM"])
@pytest.mark.parametrize("text", [TEXT, ""], ids=["text", "empty"])
def test_a_file_is_read_as_it_is_but_for_its_byte_order_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, mark: bytes
) -> None:
    (tmp_path / "prompt.txt").write_bytes(mark + text.encode())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in ("prompt.txt", "~/prompt.txt", str(tmp_path / "prompt.txt")):
        assert prompt_text(f"FILE:{place}") == text
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(mark + text.encode()), encoding="ascii"))
    assert prompt_text("-") == text


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place, reason in (("none.txt", "No such file"), (".", "Is a directory"), ("x" * 300, "too long")):
        with pytest.raises(UserError, match=rf"--start=FILE:{place} cannot be read: .*{reason}"):
            prompt_text(f"FILE:{place}")


@pytest.mark.parametrize("content", [b"ab\xff", b"ab\xe0\xa4", "कांच".encode("utf-16")])
def test_a_prompt_that_is_no_utf8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    (tmp_path / "prompt.txt").write_bytes(content)
    place = 2 if content.startswith(b"ab") else 0
    with pytest.raises(UserError, match=rf"^--start: .*prompt\.txt is not UTF-8 text: .* at byte {place}$"):
        prompt_text(f"FILE:{tmp_path / 'prompt.txt'}")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    with pytest.raises(UserError, match=rf"^--start: standard input is not UTF-8 text: .* at byte {place}$"):
        prompt_text("-")


def test_mistakes_in_a_real_process_are_lines_and_code_2_before_torch_is_there(tmp_path: Path) -> None:
    program = "import sys; from glassgpt.cli import main; code = main(); print('torch' in sys.modules, code)"
    command: list[str | bytes] = [sys.executable, "-c", program, "sample", b"--start=\xff", "--top_k=0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.stdout == "False 2\n", done.stderr
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == ["error:", "error:"]
    assert "--start is not text in UTF-8" in done.stderr
