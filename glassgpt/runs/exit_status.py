"""How a run ended: the lines that any program prints when it fails, is stopped or is done, and the verdict.

infer_exit_status(run_log)  # "finished", "interrupted", "crashed", "oom" or "cut"
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mode

from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.lines import letters_of
from glassgpt.runs.run_log import EventKind, ExitStatus, LogEvent, RunLog

# Where a program's own words begin: at the start of the line, or after a logger's name, level or place. Not
# on a line about an epoch, which is only a part of the training.
_BEGIN = r"^(?!.{0,80}\bepoch\b)(?:\S.{0,160}?\bINFO\s|\S.{0,80}?(?: - |[|\]:]|:\d{1,6}\s))?\W*"
_ANY_CASE = f"(?i){_BEGIN}"
_TRAINING = r"(?:fine-?tuning|(?:pre-?)?training|run|job)"

_SKIP = r"\bskip(?:s|ped|ping)?\b(?![-_=:])"
_NOT_FINITE = r"\b(?:nan|inf|infinite|infinity|non-?finite)\b"

# A plain substring that is searched first, because most lines do not have it; the pattern; the kind.
_EVENT_LINES: tuple[tuple[str, str, EventKind], ...] = (
    ("^C", r"^\W*\^C(?:\W|Traceback|$)", "interrupt"),
    ("Interrupt", r"^\W*(?:\w+\.)*(?:KeyboardInterrupt\b|Interrupted\b)", "interrupt"),
    ("emory", r"OutOfMemoryError|\bMemoryError\b|can't allocate memory", "oom"),
    ("out of memory", r"\b(?:CUDA|HIP|MPS|XPU|backend|device|[Ee]rror)\b.{0,40}out of memory", "oom"),
    ("out of memory", r"^out of memory$", "oom"),  # llm.c: the line after [CUDA ERROR] at file …
    ("oom", r"(?i)\boom[-_]kill", "oom"),
    ("OOM", r"\bOOM[-_ ]?[Kk]illed\b", "oom"),  # Kubernetes and SLURM
    ("Out of memory", r"\bOut of memory: Kill(?:ed)? process \d", "oom"),  # the Linux kernel
    ("ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED", "oom"),
    ("Traceback", r"Traceback \(most recent call last\)", "traceback"),
    ("File", r'^\s*File "[^"]{1,400}", line \d{1,9}, in \S', "traceback"),  # the header is lost
    # Of a script that cannot be read there is no traceback.
    ("SyntaxError", r"^\W*(?:SyntaxError)+\W*: ", "traceback"),
    ("ndentationError", r"^\W*(?:IndentationError)+\W*: ", "traceback"),
    ("CUDA ERROR", r"^\W*CUDA ERROR\W", "traceback"),
    ("CANCELLED", r"\bCANCELLED AT\b|DUE TO (?:TIME LIMIT|PREEMPTION)", "interrupt"),
    ("SIG", r"\bSIG(?:TERM|INT|HUP)\b.{0,80}(?:received|death|closing|signal)", "interrupt"),
    ("SIG", r"[Rr]eceived.{0,80}\bSIG(?:TERM|INT)", "interrupt"),
    ("signal", r"[Rr]eceived \d+ death signal|got signal: (?:2|15)\b", "interrupt"),
    ("TIME LIMIT", r"DUE TO TIME LIMIT", "interrupt"),
    ("Terminated", r"^\s*(?:\S+:\s*line \d+:\s*\d+\s*)?Terminated\b", "interrupt"),
    ("Hangup", r"^\s*(?:\S+:\s*line \d+:\s*\d+\s*)?Hangup\b", "interrupt"),  # SIGHUP, by a shell
    ("Killed", r"^\s*(?:\S+:\s*line \d+:\s*\d+\s*)?Killed\b(?:\s+python.*)?\s*$", "kill"),
    ("Segmentation", r"Segmentation fault", "abort"),
    ("core dumped", r"\(core dumped\)", "abort"),
    ("Bus error", r"^\s*Bus error", "abort"),
    ("Fatal Python error", r"^Fatal Python error: ", "abort"),
    # A rank whose collective timed out; the exception that follows says less.
    ("atchdog", r"Watchdog caught collective operation timeout", "traceback"),
    ("terminate called", r"^terminate called after throwing(?!.*DistBackendError)", "traceback"),
    ("exitcode: -9", r"\bfailed \(exitcode: -9\)", "kill"),
    ("verflow", r"[Gg]radient overflow|[Oo]verflow.{0,80}(?:loss scale|skipping)", "scaler-overflow"),
    ("loss scale", r"[Ss]kipping step.{0,80}loss scale|loss scale.{0,80}reducing", "scaler-overflow"),
    # A loop that leaves out a batch by itself; no setting such as `skip-nan: true`, no counter.
    ("kip", rf"(?i)^(?!.*\bnumber of\b)(?=.*{_SKIP})(?=.*{_NOT_FINITE})", "nonfinite-skip"),
    # What a program says of itself that changes how it trains. Most warnings are about something else.
    (
        "WARN",
        r"^\W*WARN(?:ING)?\b.{0,200}\b(?:fall(?:ing|s)?[ -]?back|not available|not supported"
        r"|no support|unsupported|mismatch|terrible|(?:much|very) slow|exceed(?:s|ed)? .{0,40}\blimit)",
        "program-warning",
    ),
    ("real", r"^\s*real\s+\d+m[\d.]+s|^\s*[\d.]+ real\s+[\d.]+ user", "finish"),
    ("wandb", r"^\W*wandb\W*: Run summary:", "finish"),
    ("swanlab", r"^\W*swanlab\W*: Experiment .{1,200} has completed\b", "finish"),
    ("elapsed", r"^[\d.]+user [\d.]+system [\d:.]+elapsed", "finish"),
    # A text that was sampled may say such things as well: they count only where no step comes after them.
    ("omplete", _ANY_CASE + rf"(?:the )?{_TRAINING}(?: is| has)? completed?\b(?! *\d)", "finish"),
    ("OMPLETE", _BEGIN + r"TRAINING COMPLETED?\b(?! *\d)", "finish"),
    ("ing", _ANY_CASE + rf"(?:the )?{_TRAINING} (?:is |has )?(?:finish|end)ed\b", "finish"),
    ("raining", _ANY_CASE + r"(?:the )?training (?:is |has )?(?:done|over)\b", "finish"),
    ("raining", _ANY_CASE + r"(?:finished|completed|done) training\b", "finish"),
    ("omplete training:", _ANY_CASE + r"complete training:", "finish"),
    ("arget", _ANY_CASE + r"target (?:\w{1,20} )?loss\b.{0,40}\b(?:reached|achieved|met)\b", "finish"),
    (
        "arget",
        _ANY_CASE + r"(?:\w{1,20} )?target (?:reached|achieved|met) at (?:step|iteration)\W{1,3}\d",
        "finish",
    ),
    ("raining", _ANY_CASE + r"(?:total training time|training took)\b\D{0,20}\d", "finish"),
    ("nd of training", _ANY_CASE + r"end of training\b", "finish"),
    # By a limit of its own: "Total time exceeded 1 minute, ending training".
    ("raining", _ANY_CASE + r".{0,60}\b(?:exceeded|reached)\b.{0,60}\b(?:end|stopp)ing training\b", "finish"),
    # Keras says it of an epoch: see trainers/keras.py.
    (
        "arly",
        r"(?i)^(?!Epoch \d).*\bearly[- ]stop(?:p(?:ing|ed)\b(?!.{0,20}(?:counter|patience|[=:]))"
        r"|(?= (?:after|at) \d| triggered)"
        r"|: (?!(?:true|false|none|off|on|yes|no)\W*$|.{0,40}(?:counter|patience))[a-z])",
        "finish",
    ),
    ("otal time", _ANY_CASE + r"(?:done\W{1,3})?total time(?: taken)?\W{1,4}\d", "finish"),
    ("Trainer.fit", r"`Trainer\.fit` stopped: .{0,60}reached", "finish"),
    ("Progress on", r"\bProgress on: (\S{1,12}it)/\1 .{0,40}\bremaining:00:00\b", "finish"),
    ("END TIME", r"^\W*END TIME\b", "finish"),
    ("one", r"(?i)^\W*(?:all )?done(?:\W*$|[.!:,;] (?:best|final) )", "finish"),
    ("one]", r"(?i)^\s*\[(?:all )?done\](?!.{0,80}\bepoch\b)", "finish"),
    ("inal", r"(?i)^\W*(?:saved|saving) (?:the )?final (?:weights|model|checkpoint)\b", "finish"),
    ("inal", _ANY_CASE + r"final (?:\w{1,20}[ _]){0,2}loss\W{1,4}\d", "finish"),
    ("report", r"^(?:Copying|Copied) report(?:\.md)? ", "finish"),  # nanochat's speedrun
)
EventPattern = tuple[str, re.Pattern[str], EventKind]
_EVENT_PATTERNS: Sequence[EventPattern] = [
    (substring, re.compile(pattern), kind) for substring, pattern, kind in _EVENT_LINES
]
_LETTERS = [letters_of(substring) for substring, _, _ in _EVENT_PATTERNS]

_WALL_TIME = re.compile(r"^\s*real\s+(\d+)m([\d.]+)s|^\s*([\d.]+) real\b")
# Training completed in 11.72 hours. A "training time" may be without the evaluations.
UNIT_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_AMOUNT = r"(\d{1,9}(?:\.\d{1,9})?)\s?(d(?:ays?)?|h(?:(?:ou)?rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)\b"
_SPENT = re.compile(
    rf"(?i)\b(?:in|time taken|took|duration)\W{{1,3}}((?:{_AMOUNT}(?:,|\s|and){{0,6}}){{1,4}})"
)
TRACEBACK_HEADER = "Traceback (most recent call last)"  # only the last line of a traceback names the error
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure)\b(?::|$)|^\[Errno \d{1,4}\] "
    r"|^(?:[a-z_]\w*\.)+(?:exc|exceptions?|errors?)\.[A-Z]\w*:"  # torch._inductor.exc.TritonMissing
)
_FRAME = re.compile(r'File "[^"]{1,400}", line \d{1,9}, in (\w{1,80})')
# What a script fails with before it does anything: after another error, it is of a later launch.
_START_ERROR = re.compile(r"\b(?:SyntaxError|IndentationError|ModuleNotFoundError|ImportError)\b")
# What torchrun, or another rank, says after an error of one process: it is no error of its own.
_CONSEQUENCE = re.compile(
    r"ChildFailedError|SignalException|DistBackendError|DistNetworkError|NCCL|[Gg]loo|Connection"
    r"|Broken ?[Pp]ipe|EOFError|[Tt]ime(?:d )?-?[Oo]ut|Interrupt"
)
LAUNCHER_ERROR = "ChildFailedError"
# torchrun stops the other ranks when one fails, and reports that, too.
_OWN_EXCEPTION = re.compile(
    r"\(most recent call last\):? (?!(?:\w+\.)*(?:ChildFailedError|SignalException|Key))"
)
_OF_SIBLING = re.compile(r"\bSignal \d{1,2} \(SIGTERM\) received by PID|closing signal SIGTERM")

_EXCEPTION_NAME = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")

# In a thread, or while an object is deleted: the program goes on.
_ELSEWHERE = re.compile(r"^Exception (?:in thread |ignored in)")
_OF_TRACEBACK = re.compile(
    r"^(?:Traceback \(|File |[~^]|(?:return|raise|yield|with|for|if)\b|[\w.]{1,80} ?[=(])|^\s"
)

WRITE_ERROR = re.compile(
    r"No space left|[Dd]isk quota|Errno (?:28|122)\b|(?:\.tmp|\.pt|\.pth|\.ckpt)' -> '|StreamWriter"
    r"|inline_container|[Ff]ile write failed|[Ee]rror.{0,40}(?:saving|writing|serializ)|Read-only file system"
)


# --- reading ---


def event_patterns(letters: bytes | None = None) -> Sequence[EventPattern]:
    """Those that a line may match of a block with these `distinct_letters`; of any block: all."""
    if letters is None:
        return _EVENT_PATTERNS
    return [pattern for pattern, own in zip(_EVENT_PATTERNS, _LETTERS, strict=True) if own in letters]


def read_event(line: str, builder: RunBuilder, patterns: Sequence[EventPattern]) -> bool:
    """Whether the line says that something happened to the process."""
    if "Exception " in line and _ELSEWHERE.match(line):
        builder.is_elsewhere = True
    elif builder.is_elsewhere and line:
        # Its traceback, up to the exception; another line is of something else.
        is_last = _EXCEPTION.match(line) is not None
        builder.is_elsewhere = not is_last and _OF_TRACEBACK.match(line) is not None
        if is_last or builder.is_elsewhere:
            return True
    if builder.in_traceback and _EXCEPTION.match(line):
        builder.set_exception(line)  # and it may match a pattern, too
    for substring, pattern, kind in patterns:
        if substring in line and pattern.search(line):
            if substring == "File":  # a frame: one event for all
                for function in _FRAME.findall(line):
                    builder.add_frame(function)
                if builder.in_traceback:
                    return True
                line = TRACEBACK_HEADER
            builder.add_event(kind, line)
            if kind == "finish" and (match := _WALL_TIME.match(line)):
                minutes, seconds, plain_seconds = match.groups()
                wall_s = float(plain_seconds) if plain_seconds else int(minutes) * 60 + float(seconds)
                builder.setup.values["wall_s"] = wall_s
            elif kind == "finish" and (spent_s := spent_seconds(line)) is not None:
                builder.setup.values["wall_s"] = spent_s
            return True
    return False


def spent_seconds(line: str) -> float | None:
    """Of a line that says how long all took: `done in 20.4 min`, `took 1 hour 5 minutes`."""
    if not (match := _SPENT.search(line)):
        return None
    amounts = re.findall(f"(?i){_AMOUNT}", match[1])
    return sum(float(number) * UNIT_SECONDS[unit[0].lower()] for number, unit in amounts)


# --- the verdict ---


def infer_exit_status(run_log: RunLog) -> ExitStatus | None:
    """None for a run in progress. `cut`: the log stops, and nothing says why."""
    if run_log.live:
        return None
    if run_log.ended is not None:
        return run_log.ended
    events = run_log.events_after_last_step()
    if any(_OWN_EXCEPTION.search(event.text) for event in events if event.kind == "traceback"):
        events = [event for event in events if not _OF_SIBLING.search(event.text)]
    if not len(run_log.steps):
        events = events_of_last_launch(events)
    after = [event.kind for event in events]
    # After a trainer's closing line, events of other programs in the same file do not count.
    is_over = "finish" in after and len(run_log.steps) > 0
    kinds = set(after[: after.index("finish")] if is_over else after)
    if has_done_plan(run_log):
        return "finished"
    if "oom" in kinds:
        return "oom"
    if "interrupt" in kinds:
        return "interrupted"
    if kinds & {"traceback", "kill", "abort"}:
        return "crashed"
    # "Finished training" may be a tokenizer's: without an iteration or evaluation nothing was trained.
    has_trained = bool(len(run_log.steps) or run_log.evals or run_log.iterations_done)
    if ("finish" in after and has_trained) or _reached_planned_end(run_log):
        return "finished"
    return "cut"


def events_of_last_launch(events: list[LogEvent]) -> list[LogEvent]:
    """Of a file to which several launches wrote, and none trained. One begins where a script fails at its
    start, or with an error after torchrun's report of the one before."""
    begin, is_reported = 0, False
    for index, event in enumerate(events):
        names_error = _EXCEPTION_NAME.search(event.text) is not None and not _CONSEQUENCE.search(event.text)
        if event.kind == "traceback" and (_START_ERROR.search(event.text) or (is_reported and names_error)):
            begin, is_reported = index, False
        is_reported = is_reported or LAUNCHER_ERROR in event.text
    return events[begin:]


def has_done_plan(run_log: RunLog) -> bool:
    """Whether a counter has come to its end, as 1000/1000 has: what fails after that is not the training."""
    planned = run_log.setup.planned_iterations
    if not planned or not len(run_log.steps) or not run_log.has_iteration_numbers:
        return False
    if any(WRITE_ERROR.search(event.text) for event in run_log.events_after_last_step()):
        return False  # it crashed in saving what it had trained
    return max(int(run_log.steps.iteration[-1]), run_log.iterations_done or 0) >= planned


def training_end_line(run_log: RunLog) -> int | None:
    """The line where training is over; None where nothing says so."""
    if has_done_plan(run_log):
        return run_log.last_step_line
    return next((event.line for event in run_log.events_after_last_step() if event.kind == "finish"), None)


def says_it_is_over(run_log: RunLog) -> bool:
    """Whether a log that may still grow shows the end of its run. An evaluation at its last line does not:
    the next line may come."""
    status = infer_exit_status(replace(run_log, live=False))
    if status != "finished" or run_log.ended is not None:
        return status != "cut"
    after = [event.kind for event in run_log.events_after_last_step()]
    return "finish" in after or planned_last_logged_iteration(run_log) is not None


def _reached_planned_end(run_log: RunLog) -> bool:
    """By the planned iterations; where these are not known, by an evaluation at the end.

    Some trainers' last iteration is one of the regular evaluations. Others make a closing evaluation, which
    is mostly off the regular grid; one on the grid proves nothing.
    """
    evaluated = list(
        dict.fromkeys(
            evaluation.iteration for evaluation in run_log.evals if evaluation.iteration is not None
        )
    )
    last_eval = run_log.evals[-1].iteration if run_log.evals else None
    last = int(run_log.steps.iteration[-1]) if len(run_log.steps) else last_eval
    if last is None:
        return False
    planned = planned_last_logged_iteration(run_log)
    if planned is not None:
        # An evaluation of the planned number closes a run, unless its iteration is still to come.
        closing = 0 if run_log.trainer.loop_includes_max_iters else last_eval or 0
        # Lines 1, 11, …, 991 of 1000: no more were to come, and a save after the last one closes the run.
        has_last_line = last + (run_log.log_interval() or 1) > planned
        saves = [save.line for save in run_log.checkpoints]
        is_saved = bool(saves) and has_last_line and max(saves) > run_log.last_step_line
        return max(last, closing) >= planned or is_saved
    if last <= run_log.trainer.first_iteration or not evaluated or run_log.is_excerpt:
        return False
    if run_log.last_partial_iteration is not None and run_log.last_partial_iteration > last:
        return False  # it trained further
    if run_log.trainer.ends_on_regular_eval:
        return last in evaluated
    if len(evaluated) < 3:
        return False
    interval = abs(mode(later - at for at, later in pairwise(evaluated))) or 1
    after_last = [last + offset for offset in run_log.trainer.final_eval_offsets]
    return evaluated[-1] in after_last and evaluated[-1] % interval != 0


def planned_last_logged_iteration(run_log: RunLog) -> int | None:
    """The iteration of the last line of a run that finishes."""
    if run_log.setup.planned_iterations is not None:
        return run_log.setup.planned_iterations
    settings = run_log.setup.settings
    max_iters, log_interval = settings.get("max_iters"), settings.get("log_interval")
    if not run_log.trainer.loop_includes_max_iters or not isinstance(max_iters, int | float) or max_iters < 0:
        return None
    if not isinstance(log_interval, int | float) or log_interval < 1:
        log_interval = run_log.log_interval() or 1
    every = int(log_interval)
    return int(max_iters) // every * every
