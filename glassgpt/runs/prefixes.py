"""What other programs put around a trainer's line: who prints it, when, and quotation marks.

[rank0]: iter 10: …        0: iter 10: …        2024-08-01 15:08:33,125 - INFO - iter 10: …
trainer-1  | iter 10: …    > iter 10: …         "iter 10: …\\n",
Mar 01 10:22:33 iter 10: …  Mar 01 10:22:33 box python[47]: iter 10: …   [  12.345] iter 10: …
"""

from __future__ import annotations

import re

_RANK = re.compile(r"\[(?:rank|default)(\d{1,4})\](?::\s*|\s+)")
_LABEL = re.compile(r"(?:\[\d{1,9}\]:?|\d{1,9}:)\s+")  # a rank that srun names, or a line number
_TIME = re.compile(
    r"\[?(?:\d{4}[-/]\d{2}[-/]\d{2}[T ])?\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?:Z|[+-]\d{2}:?\d{2})?\]?"
    r"(?:\s*[-|:]?\s*(?:[\w.]{1,40}\s*[-|:]\s*)?\[?(?:INFO|DEBUG|WARNING|ERROR)\]?\s*[-:|]*\s+"
    r"|\s+std(?:out|err) [FP]\s|[\s:,-]+)"  # the former is a container's, as Kubernetes keeps it
)
_MONTHS = ("Jan ", "Feb ", "Mar ", "Apr ", "May ", "Jun ", "Jul ", "Aug ", "Sep ", "Oct ", "Nov ", "Dec ")
# As `ts` writes it; systemd's journal adds the machine and the program.
_DATE = re.compile(
    r"[A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2}(?:\.\d{1,9})?\s+(?:[\w.-]{1,60} [\w./-]{1,60}\[\d{1,9}\]:\s)?"
)
_UPTIME = re.compile(r"\[\s*\d{1,9}\.\d{1,9}\]\s+")  # seconds since the beginning
_PROGRAM = re.compile(r"\[[a-z]\w{0,20}\]\s+(?=\d{4}-\d{2}-\d{2}[T ])")  # torchtitan's name for itself
_ECHO = re.compile(r"(?:\^\[\[[A-D])+\s*")  # arrow keys that somebody pressed meanwhile
_LEVEL = re.compile(r"\[?(?:INFO|DEBUG)\]?\s*[-:|]+\s*")
_SERVICE = re.compile(r"[\w.]{1,40}-\d{1,4}\s+\|\s")
_NOTEBOOK = re.compile(r'"(.*)\\n",?\s*$')
# Where the loss has a comma and no point, and some number has as many digits after it as no thousands have,
# commas are decimal marks.
_COMMA_LOSS = re.compile(r"\bloss\b\W{0,3}\d+,\d+(?![\d,]*\.?\d)", re.IGNORECASE)
_COMMA_DECIMALS = re.compile(r"(?<![\d,.])(?:0,\d+|\d+,(?:\d\d?|\d{4,}))(?![\d,])")
_THOUSANDS, _DECIMAL = re.compile(r"(?<=\d)\.(?=\d{3}[.,]\d)"), re.compile(r"(?<=\d),(?=\d)")


def strip_prefixes(text: str) -> tuple[str, int | None]:
    """The trainer's own line, and the rank that printed it, where the line says so."""
    text = text.strip()
    if "," in text and _COMMA_LOSS.search(text) and _COMMA_DECIMALS.search(text):
        text = _DECIMAL.sub(".", _THOUSANDS.sub("", text))
    if text.startswith(("iter ", "step ", "step:")):  # nearly every line of a long log
        return text, None
    rank = None
    for _ in range(4):
        first = text[:1]
        if first == "^" and (told := _ECHO.match(text)):
            text = text[told.end() :]
            continue
        if first == '"' and (told := _NOTEBOOK.match(text)):
            text = told[1].replace('\\"', '"')
        elif first == ">":
            text = text[1:].lstrip()
        elif told := _label(text, first):
            text = text[told.end() :]
        elif first == "[" and (told := _RANK.match(text)):
            text, rank = text[told.end() :], int(told[1])
        else:
            break
    return text, rank


def _label(text: str, first: str) -> re.Match[str] | None:
    """A time, a level of logging, or the name of a service. Most lines begin with none of these letters."""
    if first == "[" or first.isdigit():
        return _in_brackets(text) or _TIME.match(text) or _LEVEL.match(text) or _LABEL.match(text)
    if text.startswith(_MONTHS):
        return _DATE.match(text)
    if "|" in text[:50] and (told := _SERVICE.match(text)):
        return told
    return _LEVEL.match(text) if first in ("I", "D") else None


def _in_brackets(text: str) -> re.Match[str] | None:
    return _UPTIME.match(text) or _PROGRAM.match(text)
