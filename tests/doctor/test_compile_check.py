"""Compilers that are missing, broken or slow; compiling for real once."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glassgpt.doctor import compile_check
from glassgpt.doctor.compile_check import (
    build_kernels,
    check_compile,
    check_compilers,
    check_kernels,
    compile_line,
    compile_small_function,
    compiler_line,
)
from glassgpt.doctor.diagnosis import CheckContext, DiagnosticLine
from glassgpt.doctor.isolated_check import IsolatedCheckFailed, run_isolated
from glassgpt.record.machine import find_compiler


def on_path(*names: str) -> Callable[[str], str | None]:
    return lambda name: f"/usr/bin/{name}" if name in names else None


# --- compilers ---


def test_compilers_are_found_as_torch_finds_them() -> None:
    assert find_compiler("C++", {}, on_path("g++", "clang++")) == "g++"
    assert find_compiler("C++", {"CXX": "clang++"}, on_path("g++", "clang++")) == "clang++"
    assert find_compiler("C++", {"CXX": "no-such"}, on_path("clang++")) == "clang++"
    assert find_compiler("C", {"CC": ""}, on_path("gcc")) == "gcc"
    assert find_compiler("C", {}, on_path("g++")) is None


def test_a_compiler_is_named_with_its_version_and_without_its_folder() -> None:
    line = compiler_line("C++", "/home/me/bin/g++-13", "cpu", lambda *_: "g++ (GCC) 13.2.0\nCopyright")
    assert (line.message, line.verdict) == ("g++-13: g++ (GCC) 13.2.0", "ok")
    line = compiler_line("C++", "g++", "cpu", lambda *_: None)
    assert line.message == "g++: unknown version"


@pytest.mark.parametrize(
    ("language", "device_type", "verdict"),
    [
        ("C", "cuda", "problem"),  # Triton wants it, and so do our kernels
        ("C++", "cuda", "ok"),
        ("C++", "cpu", "note"),
        ("C", "cpu", "ok"),
        ("C++", "mps", "ok"),
    ],
)
def test_a_missing_compiler_matters_where_it_is_used(language: str, device_type: str, verdict: str) -> None:
    line = compiler_line(language, None, device_type, lambda *_: pytest.fail("asked"))
    assert line.verdict == verdict
    assert bool(line.fix) == (verdict != "ok")


def test_these_compilers(tmp_path: Path) -> None:
    assert [line.name for line in check_compilers(CheckContext(tmp_path, tmp_path))] == [
        "C compiler",
        "C++ compiler",
    ]


# --- torch.compile ---


def test_without_a_compiler_compiling_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_check, "default_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(compile_check, "run_isolated", lambda *_: pytest.fail("tried"))
    (line,) = check_compile(CheckContext(tmp_path, tmp_path))
    assert (line.verdict, "C++" in line.message) == ("note", True)


def test_with_one_it_is_tried_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_check, "default_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    found = [DiagnosticLine("compile", "works")]
    asked: list[Any] = []

    def apart(*given: Any) -> list[DiagnosticLine]:
        asked.append(given)
        return found

    monkeypatch.setattr(compile_check, "run_isolated", apart)
    assert check_compile(CheckContext(tmp_path, tmp_path)) == found
    assert asked[0][0] is compile_small_function
    assert 0 < asked[0][2] < 600


def test_code_that_computes_wrongly_is_a_problem() -> None:
    line = compile_line(True, 12.3)
    assert (line.verdict, "12 s" in line.message) == ("ok", True)
    line = compile_line(False, 12.3)
    assert (line.verdict, "--compile=off" in line.fix) == ("problem", True)


_BROKEN_COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo "c++ (Broken) 1.0" && exit 0
echo 'x.cpp:1:10: fatal error: Python.h: No such file' >&2
exit 1
"""


def test_a_compiler_that_breaks_down_is_told_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "c++"
    broken.write_text(_BROKEN_COMPILER)
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(IsolatedCheckFailed) as caught:
        run_isolated(compile_small_function, tmp_path, 120)
    assert "Python.h: No such file" in str(caught.value)


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")
def test_it_really_compiles(tmp_path: Path) -> None:
    (line,) = run_isolated(compile_small_function, tmp_path, 240)
    assert (line.verdict, "torch.compile works" in line.message) == ("ok", True)
    assert list((tmp_path / "torchinductor_cache_dir").rglob("*.cpp"))  # built here, not found elsewhere


# --- our kernels ---


def test_our_kernels_are_for_cuda_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_check, "default_device", lambda: torch.device("cpu"))
    (line,) = check_kernels(CheckContext(tmp_path, tmp_path))
    assert line.verdict == "ok"


def test_a_card_without_what_kernels_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    card(6, 1)
    monkeypatch.setattr(compile_check, "default_device", lambda: torch.device("cuda", 0))
    (line,) = check_kernels(CheckContext(tmp_path, tmp_path))
    assert (line.verdict, "too old" in line.message) == ("problem", True)
    assert "--kernels=plain" in line.fix


@pytest.mark.gpu
def test_they_build_and_run_here(tmp_path: Path) -> None:
    lines = run_isolated(build_kernels, tmp_path, 240)
    assert [line.name for line in lines] == ["kernels", "fp8"]
    assert lines[0].verdict == "ok"
