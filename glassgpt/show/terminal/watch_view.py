"""`glass watch` on a terminal: one screen about one run, drawn anew about once a second.

    watch_run(FollowedRun("train.log"), console)

`draw` makes the lines of a screen of any size. Where there is no room for everything, whole sections and
findings are left out: neither a line nor a number is cut.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from glassgpt.explain.summary import compose_status
from glassgpt.explain.watch import FollowedRun
from glassgpt.files import abbreviate_home
from glassgpt.format import format_count, format_duration, format_loss, format_percent, format_percent_value
from glassgpt.i18n import translate
from glassgpt.record.finding import SERIOUS, Finding
from glassgpt.runs.facts import Facts
from glassgpt.runs.progress import Progress
from glassgpt.sanitize import sanitize_line
from glassgpt.show.facts_table import phase_labels, severity_label
from glassgpt.show.terminal.charts import Levels, Points, ladder_levels, loss_chart, loss_points
from glassgpt.show.terminal.explain_view import SEVERITY_STYLES
from glassgpt.show.terminal.text_lines import terminal_text, wrap_words

_REFRESH_S = 1.0
_MAX_READ_S = 0.5  # of a long file, before the screen is drawn anew
_MAX_TEXT_WIDTH = 110  # cells; longer lines are hard to read
_MIN_CHART_HEIGHT, _MAX_CHART_HEIGHT = 4, 24
_MIN_CHART_WIDTH = 48  # cells: its title is one line
_MIN_FINDING_LINES = 2  # a title, and how many more there are
_CHART_FRAME = 2  # lines: the title and the iterations
_MIN_HEIGHT_WITH_GAPS = 22  # lines: then sections are apart by an empty one
_PHASE_STYLES = {
    "train": "green",
    "eval": "cyan",
    "pauses": "cyan",
    "startup": "yellow",
    "startup_and_eval": "yellow",
    "compile": "magenta",
    "checkpoint": "blue",
    "stall": "red",
    "data": "bright_red",
}
_QUIT_KEYS, _LOG_SCALE_KEY, _TEXT_KEY = ("q", "Q", "\x1b"), "l", "t"


@dataclass(frozen=True)
class Screen:
    """What is shown, in the current language."""

    name: str
    sentence: str
    figures: tuple[str, ...] = ()
    training: Points = ()
    validation: Points = ()
    levels: Levels = ()
    findings: Sequence[Finding] = ()  # the most important first
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    url: str = ""


def screen_of(followed: FollowedRun, name: str, url: str = "") -> Screen:
    """The screen for what was read so far."""
    progress, run_log, explanation = followed.progress(), followed.run_log, followed.explanation
    if followed.read_share < 1:
        return Screen(name, translate("watch_view.reading", share=followed.read_share), url=url)
    if progress is None or run_log is None or explanation is None:
        return Screen(name, translate("watch_view.nothing_yet"), url=url)
    facts, findings = explanation.facts, explanation.findings
    training, validation = loss_points(run_log)
    return Screen(
        name,
        f"{followed.problem}." if followed.problem else compose_status(progress, run_log, facts, findings),
        _figures(progress, facts),
        training,
        validation,
        ladder_levels(ladder.ladder if (ladder := explanation.analysis.ladder_progress) else None),
        findings,
        facts.seconds_by_phase or {},
        url,
    )


def _figures(progress: Progress, facts: Facts) -> tuple[str, ...]:
    """In the same words in every language, as the lines of a run are."""
    figures = []
    if progress.done is not None:
        of_planned = f"/{progress.planned:,}" if progress.planned else ""
        figures.append(f"iter {progress.done:,}{of_planned}")
    if progress.loss is not None:
        figures.append(f"loss {format_loss(progress.loss)}")
    if facts.best_val_loss is not None:
        unit = " bits/byte" if facts.val_metric == "bits_per_byte" else ""
        at = "" if facts.best_val_step is None else f" at {facts.best_val_step:,}"
        figures.append(f"best val {format_loss(facts.best_val_loss)}{unit}{at}")
    if facts.tokens_per_s is not None:
        figures.append(f"{format_count(facts.tokens_per_s)} tok/s")
    if facts.mfu_reported_steady is not None:
        figures.append(f"MFU {format_percent_value(facts.mfu_reported_steady)}")
    if progress.eta_s is not None and not progress.is_over:
        figures.append(translate("run_console.to_go", seconds=progress.eta_s))
    return tuple(figures)


# --- drawing ---


def draw(
    screen: Screen, out: Console, width: int, height: int, log_scale: bool = False, with_texts: bool = True
) -> list[Text]:
    """At most `height` lines of at most `width` cells. `with_texts`: evidence and advice of findings."""
    text_width = min(width, _MAX_TEXT_WIDTH)

    def wrapped(text: str, style: str = "") -> list[Text]:
        return [Text(terminal_text(line), style) for line in wrap_words(text, out, text_width)]

    head = wrapped(screen.name, "dim")[:1]
    sentence = wrapped(screen.sentence, "bold")
    figures = _fill([Text(figure) for figure in screen.figures], width)
    times = _time_lines(screen.seconds_by_phase, width)
    keys = (translate("watch_view.quit"), translate("watch_view.log_scale"), translate("watch_view.texts"))
    foot = _fill([Text(text, "dim") for text in (*keys, screen.url)], width)
    # What is needed least goes first where the terminal is small.
    for section in (times, head, foot, figures):
        if sum(map(len, (head, sentence, figures, times, foot))) <= max(height - 3, height // 2):
            break
        section.clear()
    gap = [Text("")] if height >= _MIN_HEIGHT_WITH_GAPS else []
    sections = [head + sentence, figures, times]
    used = sum(len(section) + len(gap) for section in sections if section) + len(foot)
    room = max(0, height - used)
    chart_height, most = 0, _finding_lines(screen.findings, out, text_width, room, with_texts)
    if len(screen.training) + len(screen.validation) > 1:
        free = room - len(gap) - _CHART_FRAME - (len(gap) if most else 0)
        # The curve comes before all findings but the first one's title.
        least = _MIN_CHART_HEIGHT if free >= _MIN_CHART_HEIGHT + _MIN_FINDING_LINES else 0
        chart_height = min(_MAX_CHART_HEIGHT, max(free - len(most), free // 2, least))
    chart: list[Text] = []
    if chart_height >= _MIN_CHART_HEIGHT and width >= _MIN_CHART_WIDTH:
        chart = loss_chart(
            screen.training,
            screen.validation,
            width,
            chart_height,
            width,
            log_scale,
            x_axis=True,
            levels=screen.levels,
        )
    left = room - (len(chart) + len(gap) if chart else 0)
    findings = _finding_lines(screen.findings, out, text_width, left, with_texts)
    lines: list[Text] = []
    for section in (head + sentence, figures, chart, times, findings):
        if section:
            lines += [*(gap if lines else []), *section]
    lines += [Text("")] * (height - len(lines) - len(foot))
    return [*lines, *foot][:height]


def _fill(items: Sequence[Text], width: int) -> list[Text]:
    """Items beside each other, in as many lines as they need. None is cut; one without room is left out."""
    lines: list[Text] = []
    for item in items:
        if not item.plain or item.cell_len > width:
            continue
        if lines and lines[-1].cell_len + 3 + item.cell_len <= width:
            lines[-1].append("   ").append_text(item)
        else:
            lines.append(item.copy())
    return [Text(terminal_text("")) + line for line in lines]


def _time_lines(seconds_by_phase: dict[str, float], width: int) -> list[Text]:
    """Where the time went: a bar of all phases, and their names and shares below."""
    phases = sorted(seconds_by_phase.items(), key=lambda item: -item[1])
    total_s = sum(seconds for _, seconds in phases)
    if not total_s > 0 or not math.isfinite(total_s):
        return []
    labels, line, end = phase_labels(), Text(), 0.0
    names = [Text(translate("explain_view.time_chart.title"), "bold"), Text(format_duration(total_s))]
    for phase, seconds in phases:
        begin, end = end, end + seconds / total_s
        style = _PHASE_STYLES.get(phase, "bright_black")
        line.append("█" * (round(end * width) - round(begin * width)), style)
        share = Text.assemble(("■ ", style), f"{labels[phase]} {format_percent(seconds / total_s)}")
        if seconds / total_s >= 0.005:
            names.append(share)
    return [*_fill(names, width), line]


def _finding_lines(
    findings: Sequence[Finding], out: Console, width: int, room: int, with_texts: bool
) -> list[Text]:
    """Whole findings, as many as there is room for, and how many more there are."""
    lines: list[Text] = []
    for number, finding in enumerate(findings):
        label = f"{severity_label(finding.severity)}  "
        style = SEVERITY_STYLES[finding.severity]
        block: list[Text] = []
        for line in wrap_words(label + finding.title, out, width):
            text = Text(terminal_text(line), "bold")
            if not block:
                text.stylize(style, 0, len(terminal_text("")) + len(label))
            block.append(text)
        titles = len(block)
        for part, part_style in ((finding.evidence, ""), (finding.advice, "green")):
            if with_texts and part:
                wrapped = wrap_words(part, out, width - 2)
                block += [Text(terminal_text(f"  {line}"), part_style) for line in wrapped]
        is_last = number == len(findings) - 1
        free = room - len(lines) - (0 if is_last else 1)
        if len(block) > free:
            block = block[:titles]  # without its texts
        if len(block) > free:
            left = len(findings) - number
            if room > len(lines):
                lines.append(Text(terminal_text(translate("watch_view.more_findings", count=left)), "dim"))
            break
        lines += block
    return lines


# --- the terminal ---


def watch_run(followed: FollowedRun, out: Console, name: str, url: str = "") -> None:
    """Until q is pressed, or Ctrl-C. A finished run stays on the screen, too."""
    log_scale, with_texts = False, True
    name = sanitize_line(abbreviate_home(name))
    lines: list[Text] = []
    known: set[str] | None = None  # findings; None: before the first ones
    with (
        _keyboard() as keyboard,
        Live(get_renderable=lambda: Group(*lines), console=out, screen=True, auto_refresh=False) as live,
        contextlib.suppress(KeyboardInterrupt),
    ):
        while True:
            followed.poll(_MAX_READ_S)
            if followed.read_share >= 1:
                followed.refresh()
            screen = screen_of(followed, name, url)
            lines = draw(screen, out, out.width, out.height, log_scale, with_texts)
            for line in lines:
                line.no_wrap, line.overflow = True, "crop"
            live.refresh()
            if followed.explanation is not None:
                serious = {one.id for one in screen.findings if one.severity in SERIOUS}
                if known is not None and serious - known:
                    out.bell()
                known = serious | (known or set())
            key = _read_key(keyboard, _REFRESH_S if followed.read_share >= 1 else 0.0)
            if key in _QUIT_KEYS:
                return
            log_scale ^= key.lower() == _LOG_SCALE_KEY
            with_texts ^= key.lower() == _TEXT_KEY


@contextlib.contextmanager
def _keyboard() -> Iterator[int | None]:
    """The terminal's keys, one by one and not echoed; None where there is no terminal to read from."""
    import termios
    import tty

    with contextlib.ExitStack() as closing:
        try:
            keyboard = 0
            if not sys.stdin.isatty():  # the log comes from there
                keyboard = os.open("/dev/tty", os.O_RDONLY)
                closing.callback(os.close, keyboard)
            saved = termios.tcgetattr(keyboard)
        except (OSError, termios.error):
            yield None
            return
        closing.callback(termios.tcsetattr, keyboard, termios.TCSADRAIN, saved)
        tty.setcbreak(keyboard)
        settings = termios.tcgetattr(keyboard)
        settings[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave the shell with this screen
        termios.tcsetattr(keyboard, termios.TCSADRAIN, settings)
        yield keyboard


def _read_key(keyboard: int | None, timeout_s: float) -> str:
    """A key, if one comes in time. The last of several: an arrow sends three characters."""
    if keyboard is None:
        time.sleep(timeout_s)
        return ""
    if not select.select([keyboard], [], [], timeout_s)[0]:
        return ""
    pressed = os.read(keyboard, 64).decode("utf-8", "replace")
    return pressed if len(pressed) == 1 else ""
