"""What a process takes before its iterations run at their speed: loading, allocating, compiling."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.format import format_duration, format_integer, format_ms, format_percent
from glassgpt.i18n import say
from glassgpt.runs.run_log import Floats
from glassgpt.runs.trajectory import planned_end_iteration

MIN_ADVICE_SHARE = 0.2  # of the run
TARGET_STARTUP_SHARE = 0.05  # of the run: what a longer run should bring it down to
MIN_STARTUP_MS = 1000.0
MIN_STARTUP_STEPS = 5  # times a steady iteration


def startup_compile(case: RunAnalysis) -> Finding | None:
    if case.log.live:
        return None  # at first a start-up is all there is
    if case.log.ledger is not None:
        return _from_ledger(case)
    steady, total_s = case.facts.steady_ms, case.facts.estimated_total_s
    first_ms, extras = case.facts.first_iteration_ms, _startup_ms_by_process(case)
    if not len(extras) or not steady or not total_s:
        return None
    startup = float(np.sum(extras))
    if not startup >= max(MIN_STARTUP_MS, MIN_STARTUP_STEPS * steady) or not math.isfinite(total_s):
        return None
    values = {
        "first": format_ms(math.nan if first_ms is None else first_ms),
        "extra": format_ms(float(extras[0])),
        "steady": format_ms(steady),
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
            time=format_duration(startup / 1000),
        )
    return _startup_finding(case, evidence, startup / 1000, startup / 1000, _whole_run_s(case, total_s))


def _whole_run_s(case: RunAnalysis, logged_s: float) -> float:
    """With the iterations that were planned and are not in a log that just stops."""
    missing = _missing_iterations(case)
    return logged_s + missing * (case.facts.steady_ms or 0.0) / 1000


def _missing_iterations(case: RunAnalysis) -> int:
    planned, last = planned_end_iteration(case.log), case.facts.last_iteration
    if case.facts.ended != "cut" or planned is None or last is None or len(case.log.segments) > 1:
        return 0
    return max(0, planned - last)


def _is_partial_log(case: RunAnalysis) -> bool:
    """A log that stops, or quotes a piece, is not the run; nothing says how long that was."""
    is_open = case.facts.ended == "cut" or case.log.is_excerpt
    return is_open and not _missing_iterations(case) and case.log.ledger is None


def _startup_ms_by_process(case: RunAnalysis) -> Floats:
    """For each process, what its first logged iteration holds beyond a steady one and its evaluation."""
    history, facts = case.log, case.facts
    ms, first, evaluates = history.steps.ms, history.is_first_of_process(), history.includes_eval()
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


def _from_ledger(case: RunAnalysis) -> Finding | None:
    ledger = case.log.ledger or {}
    wall_s = sum(ledger.values())
    startup_s, compile_s = ledger.get("startup", 0.0), ledger.get("compile", 0.0)
    if not (math.isfinite(wall_s) and wall_s > 0):
        return None
    if startup_s + compile_s <= MIN_ADVICE_SHARE * wall_s and compile_s < TARGET_STARTUP_SHARE * wall_s:
        return None
    evidence = say(
        "Start-up took {startup}, compiling {compile}, of {run}.",
        startup=format_duration(startup_s),
        compile=format_duration(compile_s),
        run=format_duration(wall_s),
    )
    return _startup_finding(case, evidence, startup_s + compile_s, compile_s, wall_s)


def _startup_finding(
    case: RunAnalysis, evidence: str, startup_s: float, compile_s: float, run_s: float
) -> Finding:
    """`compile_s`: the part that compiling may have taken."""
    share = min(1.0, startup_s / run_s)
    is_whole = not _is_partial_log(case)
    is_much = share > MIN_ADVICE_SHARE and is_whole
    values = {"time": format_duration(startup_s), "share": format_percent(share)}
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


def _uses_compile(case: RunAnalysis) -> bool | None:
    """None: not said. What a GlassGPT run decided counts for more than what it was asked for."""
    setup = case.log.setup
    choices = setup.machine.get("choices")
    decided = [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    chosen = next((one.get("value") for one in decided if one.get("name") == "compile"), None)
    value = setup.settings.get("compile") if chosen is None else chosen
    return {"True": True, "on": True, "False": False, "off": False}.get(str(value))


def _explanation(case: RunAnalysis, compile_s: float) -> str:
    compiles = _uses_compile(case)
    if not case.log.trainer.uses_torch:
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
    if case.facts.steady_ms is None or _is_partial_log(case):
        return cause
    return f"{cause} " + say(
        "Over {count} iterations, compiling pays if it made each at least {gain} faster; a steady one "
        "takes {steady}.",
        count=f"{_total_iterations(case):,}",
        gain=format_ms(1000 * compile_s / _total_iterations(case)),
        steady=format_ms(case.facts.steady_ms),
    )


def _total_iterations(case: RunAnalysis) -> int:
    return max(1, case.log.iteration_count() + _missing_iterations(case))


def _advice(case: RunAnalysis, startup_s: float, compile_s: float, run_s: float) -> str:
    said = []
    flag = case.log.trainer.compile_off_flag
    if _uses_compile(case) is not False and flag:
        said.append(
            say(
                "For a run as short as this, {flag} saves up to {time}, if iterations without it are less "
                "than {gain} slower.",
                flag=flag,
                time=format_duration(compile_s),
                gain=format_ms(1000 * compile_s / _total_iterations(case)),
            )
        )
    each_s = (run_s - startup_s) / _total_iterations(case)
    if each_s > 0 and case.facts.segments == 1:
        enough = startup_s * (1 - TARGET_STARTUP_SHARE) / TARGET_STARTUP_SHARE / each_s
        said.append(
            say(
                "In a run of {count} iterations the same start-up would be {share}.",
                count=format_integer(math.ceil(enough)) if math.isfinite(enough) else "?",
                share=format_percent(TARGET_STARTUP_SHARE),
            )
        )
    elif case.facts.segments > 1:
        said.append(say("{count} of the start-ups are restarts.", count=case.facts.segments - 1))
    return " ".join(said)
