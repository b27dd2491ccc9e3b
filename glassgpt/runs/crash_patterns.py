"""Lines that any program may print: how it was stopped, what went wrong, that it is over."""

from __future__ import annotations

import re

from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.run_log import EventKind

# A needle that is looked for first, since most lines hold none, and the pattern that decides.
_EVENT_PATTERNS: tuple[tuple[str, re.Pattern[str], EventKind], ...] = (
    ("^C", re.compile(r"^\W*\^C(?:\W|Traceback|$)"), "interrupt"),
    ("Interrupt", re.compile(r"^\W*(?:\w+\.)*(?:KeyboardInterrupt\b|Interrupted\b)"), "interrupt"),
    ("emory", re.compile(r"OutOfMemoryError|\bMemoryError\b|can't allocate memory"), "oom"),
    ("out of memory",
     re.compile(r"\b(?:CUDA|HIP|MPS|XPU|backend|device|[Ee]rror)\b.{0,40}out of memory"), "oom"),
    ("oom", re.compile(r"\boom[-_]kill", re.I), "oom"),
    ("OOM", re.compile(r"\bOOM[-_ ]?[Kk]illed\b"), "oom"),  # Kubernetes' and SLURM's
    ("Out of memory", re.compile(r"\bOut of memory: Kill(?:ed)? process \d"), "oom"),  # the kernel's
    ("ALLOC_FAILED", re.compile("CUBLAS_STATUS_ALLOC_FAILED"), "oom"),
    ("Traceback", re.compile(r"Traceback \(most recent call last\)"), "traceback"),
    ("CUDA ERROR", re.compile(r"^\W*CUDA ERROR\W"), "traceback"),
    ("CANCELLED", re.compile(r"\bCANCELLED AT\b|DUE TO (?:TIME LIMIT|PREEMPTION)"), "interrupt"),
    ("SIG", re.compile(r"\bSIG(?:TERM|INT|HUP)\b.{0,80}(?:received|death|closing|signal)"), "interrupt"),
    ("SIG", re.compile(r"[Rr]eceived.{0,80}\bSIG(?:TERM|INT)"), "interrupt"),
    ("signal", re.compile(r"[Rr]eceived \d+ death signal|got signal: (?:2|15)\b"), "interrupt"),
    ("TIME LIMIT", re.compile(r"DUE TO TIME LIMIT"), "interrupt"),
    ("Terminated", re.compile(r"^\s*(?:\S+:\s*line \d+:\s*\d+\s*)?Terminated\b"), "interrupt"),
    ("Killed", re.compile(r"^\s*(?:\S+:\s*line \d+:\s*\d+\s*)?Killed\b(?:\s+python.*)?\s*$"), "kill"),
    ("Segmentation", re.compile(r"Segmentation fault"), "abort"),
    ("core dumped", re.compile(r"\(core dumped\)"), "abort"),
    ("Bus error", re.compile(r"^\s*Bus error"), "abort"),
    ("Fatal Python error", re.compile(r"^Fatal Python error: "), "abort"),
    # A rank that waits for another in vain; what it then throws says less than this line.
    ("atchdog", re.compile(r"Watchdog caught collective operation timeout"), "traceback"),
    ("terminate called", re.compile(r"^terminate called after throwing(?!.*DistBackendError)"), "traceback"),
    ("exitcode: -9", re.compile(r"\bfailed \(exitcode: -9\)"), "kill"),
    ("verflow",
     re.compile(r"[Gg]radient overflow|[Oo]verflow.{0,80}(?:loss scale|skipping)"), "scaler-overflow"),
    ("loss scale",
     re.compile(r"[Ss]kipping step.{0,80}loss scale|loss scale.{0,80}reducing"), "scaler-overflow"),
    ("real", re.compile(r"^\s*real\s+\d+m[\d.]+s|^\s*[\d.]+ real\s+[\d.]+ user"), "finish"),
    ("wandb", re.compile(r"^\W*wandb\W*: Run summary:"), "finish"),
    ("elapsed", re.compile(r"^[\d.]+user [\d.]+system [\d:.]+elapsed"), "finish"),
)  # fmt: skip

_WALL_TIME = re.compile(r"^\s*real\s+(\d+)m([\d.]+)s|^\s*([\d.]+) real\b")


_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure)\b(?::|$)")


def read_event(line: str, into: RunBuilder) -> bool:
    """True where the line says that something happened to the process."""
    if into.in_traceback and _EXCEPTION.match(line):
        into.set_exception(line)  # and it may be one of the signs below
    for needle, pattern, kind in _EVENT_PATTERNS:
        if needle in line and pattern.search(line):
            into.add_event(kind, line)
            if kind == "finish":
                _note_wall_time(line, into)
            return True
    return False


def _note_wall_time(line: str, into: RunBuilder) -> None:
    if told := _WALL_TIME.match(line):
        minutes, seconds, plain = told.groups()
        total = float(plain) if plain else int(minutes) * 60 + float(seconds)
        into.setup.values["wall_s"] = total
