"""`glass report`, and the report at the end of a run."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import (
    HOSTILE_TEXT,
    chdir_with_log,
    control_characters,
    environment,
    finished_run,
    glass,
    hostile_run,
    nanogpt_log,
    write_run,
)

from glassgpt.cli import main

Capture = pytest.CaptureFixture[str]
TINY = [
    "--n_layer=1",
    "--n_embd=16",
    "--n_head=2",
    "--block_size=8",
    "--batch_size=4",
    "--eval_interval=2",
    "--eval_tokens=64",
    "--probe_seconds=0",
    "--compile=off",
    "--device=cpu",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return chdir_with_log(folder, monkeypatch)


def refused(capsys: Capture, *arguments: str) -> list[str]:
    """The problems printed; nothing written, not even half."""
    before = contents()
    capsys.readouterr()
    assert main(["report", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert contents() == before
    return [line.removeprefix("error: ") for line in captured.err.splitlines()]


def contents() -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(Path().rglob("*"))}


def reported(capsys: Capture, *arguments: str) -> Path:
    """Where the page is, which is all that is printed."""
    capsys.readouterr()
    assert main(["report", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return Path(captured.out.rstrip("\n"))


def page(path: Path) -> str:
    """Without the scripts, which are the same in all."""
    text = path.read_text(encoding="utf-8")
    assert text.rstrip().endswith("</html>")
    return re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)


def view(path: Path) -> dict[str, Any]:
    """What the page shows."""
    match = re.search(r'<script type="application/json" id="document">(.*?)</script>', page(path))
    assert match is not None
    shown: dict[str, Any] = json.loads(match[1])["view"]
    return shown


# --- where it goes ---


def test_a_log_has_its_report_here(here: Path, capsys: Capture) -> None:
    Path("elsewhere").mkdir()
    Path("n.log").rename("elsewhere/train.log")
    assert reported(capsys, "elsewhere/train.log") == Path("train.html")
    shown = view(Path("train.html"))
    assert shown["name"] == "train.log"
    assert "eval-spikes" in [finding["id"] for finding in shown["findings"]]
    assert os.listdir("elsewhere") == ["train.log"]


def test_a_run_has_its_report_in_its_folder(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(Path("runs/mine"), finished_run())
    assert reported(capsys, str(folder)) == folder / "report.html"
    assert view(folder / "report.html")["name"] == "mine"
    monkeypatch.chdir(folder)
    reported(capsys, ".")
    assert view(Path("report.html"))["name"] == "mine"


def test_it_replaces_the_report_before(capsys: Capture) -> None:
    assert reported(capsys, "n.log") == reported(capsys, "n.log")
    assert sorted(os.listdir()) == ["n.html", "n.log"]


def test_out_says_where(capsys: Capture) -> None:
    assert reported(capsys, "n.log", "--out=my page.html") == Path("my page.html")
    assert page(Path("my page.html"))


def test_the_standard_input() -> None:
    done = glass("report", "-", stdin=nanogpt_log().encode())
    assert (done.returncode, done.stdout) == (0, b"report.html\n")
    assert page(Path("report.html"))


def test_without_torch() -> None:
    code = (
        "import sys; from glassgpt.cli import main\n"
        "assert main(['report', 'n.log']) == 0\nassert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], env=environment(), timeout=60).returncode == 0


@pytest.mark.parametrize("language", ["hi", "ar"])
def test_in_another_language(language: str, capsys: Capture) -> None:
    text = page(reported(capsys, "n.log", f"--lang={language}"))
    direction = "rtl" if language == "ar" else "ltr"
    assert f'<html lang="{language}" dir="{direction}">' in text
    assert '"findings":"Findings"' not in text
    assert "\N{REPLACEMENT CHARACTER}" not in text


# --- what is refused ---


def test_bad_words(capsys: Capture) -> None:
    assert refused(capsys)
    assert refused(capsys, "nothere")
    assert refused(capsys, "n.log", "n.log")
    text = "\n".join(refused(capsys, "n.log", "--lang=fr", "--gpu=foo", "--ouut=x"))
    for part in ("--lang=fr", "--gpu=foo", "--out?"):
        assert part in text
    Path("poem.txt").write_text("Shall I\n")
    assert refused(capsys, "poem.txt")
    Path("folder").mkdir()
    assert refused(capsys, "folder")


@pytest.mark.parametrize("place", ["missing/x.html", "folder", "n.log/x.html", "/dev/null/x"])
def test_a_place_that_cannot_be_written(place: str, capsys: Capture) -> None:
    Path("folder").mkdir()
    (problem,) = refused(capsys, "n.log", f"--out={place}")
    assert "--out" in problem
    assert ".tmp" not in problem


def test_a_folder_that_cannot_be_written(capsys: Capture) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    Path("folder").mkdir(mode=0o500)
    (problem,) = refused(capsys, "n.log", "--out=folder/x.html")
    assert "--out" in problem


@pytest.mark.parametrize("when", ["while writing", "at the end"])
def test_a_full_disk_leaves_the_old_page(when: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    reported(capsys, "n.log")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if when == "at the end":
        monkeypatch.setattr(os, "replace", full)
    else:
        monkeypatch.setattr(Path, "write_bytes", full)
    (problem,) = refused(capsys, "n.log")
    monkeypatch.undo()
    assert "No space left" in problem


def test_it_never_replaces_what_it_reads(here: Path, capsys: Capture) -> None:
    Path("export.html").write_text(nanogpt_log())
    refused(capsys, "n.log", "--out=n.log")
    refused(capsys, "n.log", f"--out={here}/n.log")
    refused(capsys, "export.html")
    os.link("n.log", "same.html")
    refused(capsys, "n.log", "--out=same.html")


def test_it_never_replaces_what_is_not_its_own(capsys: Capture) -> None:
    Path("n.html").write_text("<html>My thesis</html>")
    (problem,) = refused(capsys, "n.log")
    assert "--out" in problem
    assert refused(capsys, "n.log", "--out=n.html")


# --- hostile text ---


def test_a_hostile_journal_cannot_harm_the_page(capsys: Capture) -> None:
    folder = write_run(Path("runs/evil"), hostile_run())
    text = page(reported(capsys, str(folder)))
    assert not control_characters(text)
    assert "<b>" not in text
    assert "\\u003cb\\u003e" in text


def test_a_hostile_name(capsys: Capture) -> None:
    name = f"<img src=x onerror=alert(1)>{HOSTILE_TEXT.replace('/', '')}"
    Path("n.log").rename(f"{name}.log")
    capsys.readouterr()
    assert main(["report", f"{name}.log"]) == 0
    captured = capsys.readouterr()
    assert not control_characters(captured.out + captured.err)
    text = page(Path(f"{name}.html"))
    assert "<img" not in text
    assert not control_characters(text)


# --- at the end of a run ---


def trained(capsys: Capture, data: Path, *more: str, updates: int = 4) -> str:
    """The output of a run; its reports are what we look at."""
    capsys.readouterr()
    assert main(["train", f"--data_dir={data}", "--out_dir=run", *TINY, f"--max_iters={updates}", *more]) == 0
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out + captured.err


def test_every_run_ends_with_its_report(tiny_data: Path, capsys: Capture) -> None:
    output = trained(capsys, tiny_data)
    assert re.search(r"^report +run/report\.html$", output, re.MULTILINE)
    at_end = page(Path("run/report.html"))
    assert reported(capsys, "run") == Path("run/report.html")
    assert at_end == page(Path("run/report.html"))


def test_a_report_that_fails_does_not_fail_the_run(tiny_data: Path, capsys: Capture) -> None:
    trained(capsys, tiny_data, "--console=nanogpt")
    Path("run/report.html").unlink()
    Path("run/report.html").mkdir()
    output = trained(capsys, tiny_data, "--init_from=resume", updates=6)
    assert re.search(r"^report +none: ", output, re.MULTILINE)
    assert not list(Path("run").glob("*.tmp"))
    assert not list(Path("run").glob(".*.tmp"))


def test_only_a_report_is_ever_replaced(tmp_path: Path, capsys: Capture) -> None:
    Path("n.log").write_text(nanogpt_log())
    os.mkfifo("pipe.html")
    Path("link.html").symlink_to("/dev/null")
    Path("nowhere.html").symlink_to("missing")
    Path("folder.html").mkdir()
    for place in ("pipe.html", "link.html", "nowhere.html", "folder.html"):
        assert main(["report", "n.log", f"--out={place}"]) == 2
        assert "exists and is not a report" in capsys.readouterr().err
    assert stat.S_ISFIFO(Path("pipe.html").stat().st_mode)
    assert Path("link.html").is_symlink()
    assert main(["report", "n.log", "--out=new.html"]) == 0
    assert main(["report", "n.log", "--out=new.html"]) == 0  # its own, it may
