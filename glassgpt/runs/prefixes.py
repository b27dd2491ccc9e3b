"""Strips what other programs put around a trainer's line: ranks, timestamps, log levels, quotation marks.

[rank0]: iter 10: …        0: iter 10: …        2024-08-01 15:08:33,125 - INFO - iter 10: …
trainer-1  | iter 10: …    > iter 10: …         "iter 10: …\\n",
Mar 01 10:22:33 iter 10: …  Mar 01 10:22:33 box python[47]: iter 10: …   [  12.345] iter 10: …
"""

from __future__ import annotations

import re

# torchrun writes `[default0]:`, and as its template says, `[trainer0|0]:` or `[worker1:9]:`
_RANK = re.compile(r"\[(?:(?:rank|default)|[a-z]\w{0,30}\d[|:])(\d{1,5})\](?::\s*|\s+)")
_NUMBER_LABEL = re.compile(r"(?:\[\d{1,9}\]:?|\d{1,9}:)\s+")  # srun's rank, or a line number
_DAY = r"(?:\d{4}[-/]\d{2}[-/]\d{2}|\d{2}[-/.]\d{2}[-/.]\d{4})"
_CLOCK = rf"\[?(?:{_DAY}[T ])?" r"\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?:Z|[+-]\d{2}:?\d{2})?\]?"
_TIME = re.compile(
    _CLOCK
    + r"(?:\s*[-|:]?\s*(?:[\w.]{1,40}\s*[-|:]\s*)?\[?(?:INFO|DEBUG|WARNING|ERROR|SUCCESS)\]?\s*[-:|]*\s+"
    # Loguru's module, function and line; or the logger's name.
    r"(?:[\w.<>]{1,60}:[\w.<>]{1,60}:\d{1,6} - |(?:__main__|\w{1,30}(?:\.\w{1,30}){1,5}) -\s+)?"
    r"|\[[\w./-]{1,60}\]\[(?:INFO|DEBUG|WARNING|ERROR)\] - "  # Hydra's
    r"|\s+std(?:out|err) [FP]\s|[\s:,-]+)"  # the first is how Kubernetes stores a container's output
)
# The usual ones of these, for a search over many lines: no newline matches.
PLAIN_TIME = _CLOCK + r"(?: (?:- )?\[?INFO\]?(?: -|:)?)? "
# As a field of the line: `step: 9 | time: 2025-08-20 13:50:50.485907 | loss: 6.47`.
_DATE_FIELD = re.compile(
    rf"\b(?:time|timestamp|datetime|date)[\"']?\s?[:=]\s?[\"']?({_DAY}[T ]"
    r"\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?)"
)
_LEAP_YEAR = 2000  # for a date without a year
_MONTHS = ("Jan ", "Feb ", "Mar ", "Apr ", "May ", "Jun ", "Jul ", "Aug ", "Sep ", "Oct ", "Nov ", "Dec ")
# As `ts` writes it; systemd's journal adds the machine and the program.
_DATE = re.compile(
    r"[A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2}(?:\.\d{1,9})?\s+(?:[\w.-]{1,60} [\w./-]{1,60}\[\d{1,9}\]:\s)?"
)
# As Caffe's glog writes it, without a year: I0508 12:40:15.421900  2763 solver.cpp:65] Iteration 40
_GLOG = re.compile(r"[IWE](\d\d)(\d\d) (\d{2}:\d{2}:\d{2}\.\d{1,9})\s+\d{1,9} [\w.-]{1,60}:\d{1,6}\]\s+")
_UPTIME = re.compile(r"\[\s*\d{1,9}\.\d{1,9}\]\s+")  # seconds since the start
_PROGRAM = re.compile(r"\[[a-z]\w{0,20}\]\s+(?=\d{4}-\d{2}-\d{2}[T ])")  # as torchtitan writes it
# As Hugging Face's libraries write it: [INFO|trainer.py:4021] 2025-04-01 08:30:11,020 >> text
_PLACE = re.compile(r"\[[A-Z]{4,8}\|[\w.]{1,60}:\d{1,6}\]\s+(?=\d{4}-\d{2}-\d{2}[T ])")
_ECHO = re.compile(r"(?:\^\[\[[A-D])+\s*")  # arrow keys that were pressed in the terminal
_LEVEL = re.compile(
    r"(?:INFO|DEBUG):[\w.-]{1,40}:(?=\S)|\[?(?:INFO|DEBUG)\]?\s*[-:|]+(?:(?:__main__|root):)?\s*"
)
_SERVICE = re.compile(r"[\w.]{1,40}-\d{1,4}\s+\|\s")
_NOTEBOOK = re.compile(r'"(.*)\\n",?\s*$')
# Commas are decimal marks where the loss has a comma and no point, and the comma of some number is not
# followed by three digits, as a thousands separator would be.
_COMMA_LOSS = re.compile(r"\bloss\b\W{0,3}\d+,\d+(?![\d,]*\.?\d)", re.IGNORECASE)
_COMMA_DECIMALS = re.compile(r"(?<![\d,.])(?:0,\d+|\d+,(?:\d\d?|\d{4,}))(?![\d,])")
_POINT_OF_THOUSANDS = re.compile(r"(?<=\d)\.(?=\d{3}[.,]\d)")
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")


def strip_prefixes(text: str) -> tuple[str, int | None, str]:
    """The trainer's line; the rank that printed it, where a prefix names it; and the time, as printed."""
    text = text.strip()
    if "," in text and _COMMA_LOSS.search(text) and _COMMA_DECIMALS.search(text):
        text = _DECIMAL_COMMA.sub(".", _POINT_OF_THOUSANDS.sub("", text))
    field = _DATE_FIELD.search(text) if "-" in text and ("time" in text or "date" in text) else None
    if text.startswith(("iter ", "step ", "step:")):  # nearly every line of a long log
        return text, None, field[1] if field else ""
    rank, clock = None, ""
    for _ in range(6):
        first = text[:1]
        if first == "^" and (match := _ECHO.match(text)):
            text = text[match.end() :]
            continue
        if first == '"' and (match := _NOTEBOOK.match(text)):
            text = match[1].replace('\\"', '"')
            continue
        if first == ">":
            text = text[1:].lstrip()
            continue
        # Most lines do not begin with one of these characters.
        patterns: tuple[re.Pattern[str], ...] = ()
        if first == "[":
            patterns = (_UPTIME, _PROGRAM, _PLACE, _TIME, _LEVEL, _NUMBER_LABEL, _RANK)
        elif first.isdigit():
            patterns = (_TIME, _NUMBER_LABEL) if ":" in text[:20] else ()
        elif text.startswith(_MONTHS):
            patterns = (_DATE,)
        elif first in ("I", "W", "E") and text[1:5].isdecimal():
            patterns = (_GLOG,)
        elif "|" in text[:50] or first in ("I", "D"):
            patterns = (_SERVICE, _LEVEL)
        match = next((found for pattern in patterns if (found := pattern.match(text))), None)
        if match is None:
            break
        if match.re is _RANK:
            rank = int(match[1])
        elif match.re is _TIME:
            clock = match[0]
        elif match.re is _GLOG:
            clock = f"{_LEAP_YEAR}-{match[1]}-{match[2]} {match[3]}"
        text = text[match.end() :]
    return text.lstrip(), rank, clock or (field[1] if field else "")
