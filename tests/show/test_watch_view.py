"""The screen of `glass watch`: which values it shows, at any size, while a log grows and at its end."""

from __future__ import annotations

import contextlib
import math
import os
import pty
import re
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from written_findings import written_finding

from glassgpt.explain.watch import FollowedRun
from glassgpt.i18n import use_language
from glassgpt.show.terminal.watch_view import Screen, draw, screen_of

HEAD = "Overriding: max_iters = 1000\nmax_iters = 1000\ntokens per iteration will be: 16,384\n"


class Clock:
    """Seconds since the epoch, which the tests set."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def lines(first: int, last: int) -> str:
    """nanoGPT's, every 10 iterations of 100 ms, an evaluation of 2 s every 100."""
    printed = []
    for at in range(first, last + 1, 10):
        loss = 2 + 2 * math.exp(-at / 200)
        if at % 100 == 0:
            printed.append(f"step {at}: train loss {loss:.4f}, val loss {loss + 0.1:.4f}")
        ms = 2100.0 if at % 100 == 0 else 100.0
        printed.append(f"iter {at}: loss {loss:.4f}, time {ms:.2f}ms, mfu 12.50%")
    return "\n".join(printed) + "\n"


def shown(screen: Screen, width: int, height: int, **options: bool) -> list[str]:
    return [
        line.plain for line in draw(screen, Console(width=width, height=height), width, height, **options)
    ]


def demo_screen() -> Screen:
    followed = FollowedRun("demo:gpu")
    followed.poll()
    followed.refresh(force=True)
    return screen_of(followed, "demo:gpu", "http://127.0.0.1:8421/?token=QFA9bm9SOKtDdgi6-S7tb6x1PnP51TzU")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60)])
def test_a_finished_run(width: int, height: int) -> None:
    text = shown(demo_screen(), width, height)
    assert len(text) == height
    assert max(map(len, text)) <= width
    page = " ".join(text)
    for value in (
        "finished at iteration 5,000", "iter 5,000/5,000", "loss 0.8176", "best val 1.4576 at 1,750",
        "1.27M tok/s", "MFU 28.1%", "2m 22s", "training 46%", "evaluation and checkpoints 33%",
        "start-up 21%", "The model has overfitted since iteration 1,750",
        "http://127.0.0.1:8421/?token=QFA9bm9SOKtDdgi6-S7tb6x1PnP51TzU",
    ):  # fmt: skip
        assert value in page, value
    assert "to go" not in page
    (axis,) = [line for line in text if re.fullmatch(r" +0 +5,000 ?", line)]
    labelled = [line for line in text if re.match(r" +[\d.]+ [\u2800-\u28ff]", line)]
    top, bottom = labelled[0], labelled[-1]
    assert (top.split()[0], bottom.split()[0]) == ("2.41", "0.782")
    assert len(axis.rstrip()) == len(re.sub(r" \d-gram [\d.]+$", "", bottom.rstrip()))
    # Where tables of n-grams of this text stand.
    assert re.search(r"┈ 6-gram 1\.56", "\n".join(text)) is not None


def test_a_growing_log_with_a_fake_clock(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(HEAD + lines(0, 300))
    clock = Clock(path.stat().st_mtime)
    followed = FollowedRun(str(path), is_writing=lambda: True, clock=clock, wall_clock=clock)
    followed.poll()
    assert followed.refresh()
    page = " ".join(shown(screen_of(followed, "train.log"), 80, 24))
    # 700 updates of 0.1 s; evaluations of 2 s at 400, 500, … 1000.
    seconds = 700 * 0.1 + 7 * 2.0
    progress = followed.progress()
    assert progress is not None
    assert progress.eta_s == pytest.approx(seconds, rel=0.01)
    assert "iter 300/1,000" in page
    assert f"{int(seconds) // 60}m {int(seconds) % 60:02}s to go" in page
    assert "best val 2.5463 at 300" in page
    with path.open("a") as file:
        file.write(lines(310, 600))
    clock.now += 10
    followed.poll()
    assert followed.refresh()
    page = " ".join(shown(screen_of(followed, "train.log"), 80, 24))
    assert "iter 600/1,000" in page
    assert "loss 2.0996" in page


def test_before_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("")
    followed = FollowedRun(str(path), is_writing=lambda: True)
    followed.poll()
    followed.refresh()
    assert (
        shown(screen_of(followed, "train.log"), 80, 24)[1] == "Waiting for the first line of a training run."
    )


@pytest.mark.parametrize("language", ["en", "hi", "ar"])
def test_no_number_is_cut_at_any_size(language: str) -> None:
    with use_language(language):
        screen = demo_screen()
        whole = " ".join(shown(screen, 400, 100))
        numbers = set(re.findall(r"\d[\d,.:%]*", whole))
        console = Console(width=200, height=80)
        for width in (24, 33, 40, 59, 80, 120, 200):
            for height in (1, 2, 5, 8, 12, 20, 24, 40, 60):
                drawn = draw(screen, console, width, height)
                assert len(drawn) <= height
                if max(line.cell_len for line in drawn) > width:
                    raise AssertionError((width, height, [line.plain for line in drawn]))
                text = "\n".join(line.plain for line in drawn if not set("\u2800┈") & set(line.plain))
                found = {number.rstrip(".,:") for number in re.findall(r"\d[\d,.:%]*", text)}
                known = {number.rstrip(".,:") for number in numbers} | set("123456789")  # of more findings
                assert found <= known, (width, height, found - known)


def test_a_right_to_left_language_marks_every_line_of_text() -> None:
    with use_language("ar"):
        text = [line for line in shown(demo_screen(), 80, 24) if re.search("[\u0621-\u064a]", line)]
    assert len(text) > 5
    assert all(line.startswith("\u200f") for line in text)
    assert "\ufffd" not in "".join(text)


def test_findings_that_do_not_fit_are_counted_and_texts_can_be_left_out() -> None:
    findings = [
        written_finding(f"a-{n}", "warning", f"Title {n}", f"Evidence {n}", advice=f"Advice {n}")
        for n in range(9)
    ]
    screen = Screen("a.log", "It trains.", findings=findings)
    text = shown(screen, 80, 10)
    texts = [[f"warning  Title {n}", f"  Evidence {n}", f"  Advice {n}"] for n in range(2)]
    assert text[1:9] == ["It trains.", *texts[0], *texts[1], "more findings: 7"]
    # One more line: the next title, without its texts.
    assert shown(screen, 80, 11)[8:10] == ["warning  Title 2", "more findings: 6"]
    titles = shown(screen, 80, 12, with_texts=False)
    assert [line for line in titles if "Title" in line] == [f"warning  Title {number}" for number in range(9)]


def test_a_logarithmic_scale_puts_the_geometric_mean_in_the_middle() -> None:
    points = [(float(at), 10.0 ** (-at / 50)) for at in range(101)]  # 1 to 0.01
    screen = Screen("a.log", "It trains.", training=points)

    def middle(log_scale: bool) -> float:
        text = shown(screen, 80, 40, log_scale=log_scale)
        labels = [
            float(match[1]) for line in text if (match := re.match(r" +([\d.]+) [\u2800-\u28ff]", line))
        ]
        assert len(labels) == 3
        return labels[1]

    assert middle(False) == pytest.approx(0.44, abs=0.05)
    assert middle(True) == pytest.approx(0.1, rel=0.3)


def test_a_hostile_log_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "evil\x1b[31m.log"
    path.write_text(HEAD + lines(0, 200) + "RuntimeError: \x1b]0;owned\x07[red]x[/red]\u202e <b>\n")
    followed = FollowedRun(str(path))
    followed.poll()
    followed.refresh(force=True)
    text = "".join(shown(screen_of(followed, path.name), 100, 40))
    assert not set(text) & {"\x1b", "\x07", "\u202e", "\x9b"}


@pytest.mark.skipif(os.name != "posix", reason="a terminal of a Unix")
def test_the_terminal_rings_for_what_is_new_and_serious(tmp_path: Path) -> None:
    """In a real terminal: silent for what was there before, once for a loss that explodes."""
    path = tmp_path / "train.log"
    path.write_text(HEAD + lines(0, 300))
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        os.execv(sys.executable, [sys.executable, "-m", "glassgpt", "watch", str(path), "--page=off"])
    seen = b""

    def read_until(is_enough: Callable[[], bool]) -> None:
        nonlocal seen
        deadline = time.monotonic() + 60
        while not is_enough():
            assert time.monotonic() < deadline, seen[-2000:]
            if select.select([terminal], [], [], 0.2)[0]:
                seen += os.read(terminal, 1 << 16)

    try:
        read_until(lambda: b"300/1,000" in seen)
        assert b"\a" not in seen
        with path.open("a") as file:
            file.writelines(f"iter {at}: loss 9.5, time 100.00ms, mfu 12.50%\n" for at in range(310, 420, 10))
        read_until(lambda: b"\a" in seen)
        shown_at = time.monotonic()
        read_until(lambda: time.monotonic() > shown_at + 3)
        assert seen.count(b"\a") == 1
        os.write(terminal, b"q")
        with contextlib.suppress(OSError):  # a terminal whose process has ended
            read_until(lambda: False)
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert status == 0
