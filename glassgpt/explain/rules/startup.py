"""What a process takes before its iterations run at their speed: loading, allocating, compiling."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.explain.rule import Case, Finding
from glassgpt.format import duration, milliseconds, percent, whole
from glassgpt.i18n import say
from glassgpt.runs.run_log import Floats
from glassgpt.runs.trajectory import planned_end

ADVICE_FROM = 0.2  # of the run
SMALL = 0.05  # of the run: what a longer run should bring it down to
NOTICEABLE_MS = 1000.0
NOTICEABLE_STEPS = 5  # times a steady iteration


def startup_compile(case: Case) -> Finding | None:
    if case.history.live:
        return None  # at first a start-up is all there is
    if case.history.ledger is not None:
        return _from_ledger(case)
    steady, total_s = case.facts.steady_ms, case.facts.estimated_total_s
    first_ms, extras = case.facts.first_iteration_ms, _extra_ms(case)
    if not len(extras) or not steady or not total_s:
        return None
    startup = float(np.sum(extras))
    if not startup >= max(NOTICEABLE_MS, NOTICEABLE_STEPS * steady) or not math.isfinite(total_s):
        return None
    values = {
        "first": milliseconds(math.nan if first_ms is None else first_ms),
        "extra": milliseconds(float(extras[0])),
        "steady": milliseconds(steady),
    }
    if case.facts.eval_overhead_ms is None:
        evidence = say(
            "The first iteration took {first}, {extra} more than a steady one ({steady}).", **values
        )
    else:
        evidence = say(
            "The first iteration took {first}, {extra} more than a steady one ({steady}) and its evaluation.",
            **values,
        )
    if len(extras) > 1:
        evidence += " " + say(
            "All {count} processes in this log together: {time}.",
            count=len(extras),
            time=duration(startup / 1000),
        )
    return _finding(case, evidence, startup / 1000, startup / 1000, _whole_run_s(case, total_s))


def _whole_run_s(case: Case, logged_s: float) -> float:
    """With the iterations that were planned and are not in a log that just stops."""
    missing = _missing(case)
    return logged_s + missing * (case.facts.steady_ms or 0.0) / 1000


def _missing(case: Case) -> int:
    planned, last = planned_end(case.history), case.facts.last_iteration
    if case.facts.ended != "cut" or planned is None or last is None or len(case.history.segments) > 1:
        return 0
    return max(0, planned - last)


def _is_part(case: Case) -> bool:
    """A log that stops, or quotes a piece, is not the run; nothing says how long that was."""
    is_open = case.facts.ended == "cut" or case.history.quoted
    return is_open and not _missing(case) and case.history.ledger is None


def _extra_ms(case: Case) -> Floats:
    """For each process, what its first logged iteration holds beyond a steady one and its evaluation."""
    history, facts = case.history, case.facts
    ms, first, evaluates = history.steps.ms, history.first_of_process(), history.holds_eval()
    if facts.steady_ms is None or facts.startup_ms is None:
        return np.zeros(0)
    if history.trainer.evaluates_before_first_step:
        evaluates = evaluates | (first & (facts.eval_overhead_ms is not None))
    if facts.eval_overhead_ms is None:
        first = first & ~evaluates  # the evaluation cannot be taken out
    with np.errstate(over="ignore", invalid="ignore"):  # times of 1e308 have been seen
        extra = ms - facts.steady_ms - np.where(evaluates, facts.eval_overhead_ms or 0.0, 0.0)
    extra = extra[first]
    return np.maximum(extra[np.isfinite(extra)], 0.0)


def _from_ledger(case: Case) -> Finding | None:
    ledger = case.history.ledger or {}
    wall_s = sum(ledger.values())
    startup_s, compile_s = ledger.get("startup", 0.0), ledger.get("compile", 0.0)
    if not (math.isfinite(wall_s) and wall_s > 0):
        return None
    if startup_s + compile_s <= ADVICE_FROM * wall_s and compile_s < SMALL * wall_s:
        return None
    evidence = say(
        "Start-up took {startup}, compiling {compile}, of {run}.",
        startup=duration(startup_s),
        compile=duration(compile_s),
        run=duration(wall_s),
    )
    return _finding(case, evidence, startup_s + compile_s, compile_s, wall_s)


def _finding(case: Case, evidence: str, startup_s: float, compile_s: float, run_s: float) -> Finding:
    """`compile_s`: the part that compiling may have taken."""
    share = min(1.0, startup_s / run_s)
    is_whole = not _is_part(case)
    is_much = share > ADVICE_FROM and is_whole
    values = {"time": duration(startup_s), "share": percent(share)}
    return Finding(
        "startup-compile",
        "advice" if is_much else "info",
        say("Start-up took {time}, {share} of the run", **values)
        if is_whole
        else say("Start-up took {time}, {share} of the time that this log shows", **values),
        evidence,
        _explanation(case, compile_s),
        _advice(case, startup_s, compile_s, run_s) if is_much else "",
    )


def _compiles(case: Case) -> bool | None:
    """None: not said. What a GlassGPT run decided counts for more than what it was asked for."""
    setup = case.history.setup
    choices = setup.machine.get("choices")
    decided = [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    chosen = next((one.get("value") for one in decided if one.get("name") == "compile"), None)
    value = setup.settings.get("compile") if chosen is None else chosen
    return {"True": True, "on": True, "False": False, "off": False}.get(str(value))


def _explanation(case: Case, compile_s: float) -> str:
    compiles = _compiles(case)
    if not case.history.trainer.uses_torch:
        return say("Before its first update a process allocates memory and chooses kernels.")
    if compiles is False:
        return say(
            "Before its first update a process loads libraries, allocates memory and chooses kernels. "
            "torch.compile was off."
        )
    if compiles:
        cause = say(
            "torch.compile builds its kernels at the first use; libraries and memory are set up then too."
        )
    else:
        cause = say(
            "Libraries and memory are set up at the first use, and torch.compile, if it was on, builds "
            "its kernels then; this log does not say."
        )
    if case.facts.steady_ms is None or _is_part(case):
        return cause
    return f"{cause} " + say(
        "Over {count} iterations, compiling pays if it made each at least {gain} faster; a steady one "
        "takes {steady}.",
        count=f"{_iterations(case):,}",
        gain=milliseconds(1000 * compile_s / _iterations(case)),
        steady=milliseconds(case.facts.steady_ms),
    )


def _iterations(case: Case) -> int:
    return max(1, case.history.iterations() + _missing(case))


def _advice(case: Case, startup_s: float, compile_s: float, run_s: float) -> str:
    said = []
    flag = case.history.trainer.compile_off_flag
    if _compiles(case) is not False and flag:
        said.append(
            say(
                "For a run as short as this, {flag} saves up to {time}, if iterations without it are less "
                "than {gain} slower.",
                flag=flag,
                time=duration(compile_s),
                gain=milliseconds(1000 * compile_s / _iterations(case)),
            )
        )
    each_s = (run_s - startup_s) / _iterations(case)
    if each_s > 0 and case.facts.segments == 1:
        enough = startup_s * (1 - SMALL) / SMALL / each_s
        said.append(
            say(
                "In a run of {count} iterations the same start-up would be {share}.",
                count=whole(math.ceil(enough)) if math.isfinite(enough) else "?",
                share=percent(SMALL),
            )
        )
    elif case.facts.segments > 1:
        said.append(say("{count} of the start-ups are restarts.", count=case.facts.segments - 1))
    return " ".join(said)
