"""Wall time that step times do not show: start-up and compilation, and clocks read before the GPU is done."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.format import format_duration, format_integer, format_ms, format_percent
from glassgpt.i18n import say
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import Floats
from glassgpt.runs.trajectory import planned_end_iteration

MIN_ADVICE_SHARE = 0.2  # start-up over run time
TARGET_STARTUP_SHARE = (
    0.05  # of the run: what a longer run brings it down to; less compilation is not mentioned
)
MIN_STARTUP_MS = 1000.0
MIN_STARTUP_STEPS = 5  # times a steady iteration
CLOCK_TOLERANCE = 0.02  # |wall time - sum of step times| over wall time: below that the two agree


# --- start-up ---


def startup_compile(analysis: Analysis) -> Finding | None:
    """The start-up of the processes: loading, allocation, compilation. What it cost, and when that pays."""
    facts, ledger = analysis.facts, analysis.log.ledger
    if analysis.log.live:
        return None  # at first a start-up is all there is
    if ledger is not None:
        wall_s = sum(ledger.values())
        startup_s, compile_s = ledger.get("startup", 0.0), ledger.get("compile", 0.0)
        if not (math.isfinite(wall_s) and wall_s > 0):
            return None
        if startup_s + compile_s <= MIN_ADVICE_SHARE * wall_s and compile_s < TARGET_STARTUP_SHARE * wall_s:
            return None
        evidence = say(
            "Start-up took {startup} and compiling {compile}, of {run} in total.",
            startup=format_duration(startup_s),
            compile=format_duration(compile_s),
            run=format_duration(wall_s),
        )
        return _startup_finding(analysis, evidence, startup_s + compile_s, compile_s, wall_s)
    extra_ms, steady_ms, total_s = _startup_ms_by_process(analysis), facts.steady_ms, facts.estimated_total_s
    if not len(extra_ms) or not steady_ms or not total_s:
        return None
    startup_ms = float(np.sum(extra_ms))
    if not startup_ms >= max(MIN_STARTUP_MS, MIN_STARTUP_STEPS * steady_ms) or not math.isfinite(total_s):
        return None
    values = {
        "first": format_ms(math.nan if facts.first_iteration_ms is None else facts.first_iteration_ms),
        "extra": format_ms(float(extra_ms[0])),
        "steady": format_ms(steady_ms),
    }
    if facts.eval_overhead_ms is None:
        evidence = say(
            "The first iteration took {first}, {extra} more than a steady one ({steady}).", **values
        )
    else:
        evidence = say(
            "The first iteration took {first}, {extra} more than a steady one ({steady}) and its evaluation.",
            **values,
        )
    if len(extra_ms) > 1:
        evidence += " " + say(
            "All {count} processes in this log together: {time}.",
            count=len(extra_ms),
            time=format_duration(startup_ms / 1000),
        )
    startup_s = startup_ms / 1000
    run_s = total_s + _missing_iterations(analysis) * steady_ms / 1000
    return _startup_finding(analysis, evidence, startup_s, startup_s, run_s)


def _startup_ms_by_process(analysis: Analysis) -> Floats:
    """Per process, the time of its first logged iteration beyond a steady one and its evaluation."""
    run_log, facts = analysis.log, analysis.facts
    first, includes_eval = run_log.is_first_of_process(), run_log.includes_eval()
    if facts.steady_ms is None or facts.startup_ms is None:
        return np.zeros(0)
    if run_log.trainer.evaluates_before_first_step:
        includes_eval = includes_eval | (first & (facts.eval_overhead_ms is not None))
    if facts.eval_overhead_ms is None:
        first = first & ~includes_eval  # the evaluation cannot be subtracted
    eval_ms = np.where(includes_eval, facts.eval_overhead_ms or 0.0, 0.0)
    extra_ms = (run_log.steps.ms - facts.steady_ms - eval_ms)[first]
    return np.maximum(extra_ms[np.isfinite(extra_ms)], 0.0)


def _missing_iterations(analysis: Analysis) -> int:
    """Planned iterations after the last line of a log that just stops."""
    planned, last = planned_end_iteration(analysis.log), analysis.facts.last_iteration
    if analysis.facts.ended != "cut" or planned is None or last is None or len(analysis.log.segments) > 1:
        return 0
    return max(0, planned - last)


def _startup_finding(
    analysis: Analysis, evidence: str, startup_s: float, compile_s: float, run_s: float
) -> Finding:
    """`compile_s`: the part that compilation may have taken."""
    facts, run_log = analysis.facts, analysis.log
    missing = _missing_iterations(analysis)
    iterations = max(1, run_log.iteration_count() + missing)
    # A log that stops, or quotes an excerpt, is not the whole run; nothing says how long that was.
    is_whole = not (facts.ended == "cut" or run_log.is_excerpt) or bool(missing) or run_log.ledger is not None
    uses_compile = _uses_compile(analysis)
    if not run_log.trainer.uses_torch:
        explanation = say("Before its first update a process allocates memory and chooses kernels.")
    elif uses_compile is False:
        explanation = say(
            "Before its first update a process loads libraries, allocates memory and chooses kernels. "
            "torch.compile was off."
        )
    else:
        explanation = (
            say("torch.compile builds its kernels at first use; libraries and memory are set up then, too.")
            if uses_compile
            else say(
                "Libraries and memory are set up at first use, and torch.compile builds its kernels then if "
                "it is on; this log does not say whether it was."
            )
        )
        if facts.steady_ms is not None and is_whole:
            explanation += " " + say(
                "Over {count} iterations, compiling pays off if it made each at least {gain} faster; a "
                "steady one takes {steady}.",
                count=f"{iterations:,}",
                gain=format_ms(1000 * compile_s / iterations),
                steady=format_ms(facts.steady_ms),
            )
    share = min(1.0, startup_s / run_s)
    needs_advice = share > MIN_ADVICE_SHARE and is_whole
    values = {"time": format_duration(startup_s), "share": format_percent(share)}
    return Finding(
        "startup-compile",
        "advice" if needs_advice else "info",
        say("Start-up took {time}, {share} of the run", **values)
        if is_whole
        else say("Start-up took {time}, {share} of the time that this log shows", **values),
        evidence,
        explanation,
        _startup_advice(analysis, iterations, startup_s, compile_s, run_s) if needs_advice else "",
    )


def _startup_advice(
    analysis: Analysis, iterations: int, startup_s: float, compile_s: float, run_s: float
) -> str:
    facts, flag = analysis.facts, analysis.log.trainer.compile_off_flag
    advice = []
    if flag and _uses_compile(analysis) is not False:
        advice.append(
            say(
                "For a run as short as this, {flag} saves up to {time}, if uncompiled iterations are less "
                "than {gain} slower.",
                flag=flag,
                time=format_duration(compile_s),
                gain=format_ms(1000 * compile_s / iterations),
            )
        )
    iteration_s = (run_s - startup_s) / iterations
    if facts.segments > 1:
        advice.append(say("{count} of the start-ups are restarts.", count=facts.segments - 1))
    elif iteration_s > 0 and facts.segments == 1:
        enough = startup_s * (1 - TARGET_STARTUP_SHARE) / TARGET_STARTUP_SHARE / iteration_s
        advice.append(
            say(
                "In a run of {count} iterations the same start-up would take {share} of the time.",
                count=format_integer(math.ceil(enough)) if math.isfinite(enough) else "?",
                share=format_percent(TARGET_STARTUP_SHARE),
            )
        )
    return " ".join(advice)


def _uses_compile(analysis: Analysis) -> bool | None:
    """None: not in the log. What a GlassGPT run decided counts for more than what was requested."""
    setup = analysis.log.setup
    choices = setup.machine.get("choices")
    decisions = [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    chosen = next((one.get("value") for one in decisions if one.get("name") == "compile"), None)
    value = setup.settings.get("compile") if chosen is None else chosen
    return {"True": True, "on": True, "False": False, "off": False}.get(str(value))


# --- clocks ---


def clock_before_sync(analysis: Analysis) -> Finding | None:
    """The trainer reads its clock when kernels are launched, not when they are done, except at logged
    iterations. A warning where the logged times add up to more than the wall time."""
    run_log, facts = analysis.log, analysis.facts
    if not run_log.trainer.clock_reads_before_sync or run_log.setup.settings.get("device") == "cpu":
        return None
    interval, steady_ms, count = facts.log_interval, facts.steady_ms, run_log.iteration_count()
    if not interval or interval < 2 or not steady_ms or count <= facts.iterations_logged:
        return None
    evidence = say(
        "{logged} of {count} iterations are timed, one in {interval}; their median is {steady}.",
        logged=f"{facts.iterations_logged:,}",
        count=f"{count:,}",
        interval=interval,
        steady=format_ms(steady_ms),
    )
    explanation = say(
        "On a GPU, {trainer} reads its clock without waiting for the kernels, except at logged iterations, "
        "where it fetches the loss. So each time is a sample, and may include waiting for the iterations "
        "before it.",
        trainer=run_log.trainer.name,
    )
    wall_s, estimated_s, is_too_long = run_log.setup.wall_s, facts.estimated_total_s, False
    is_one_process = len(run_log.segments) == 1
    if is_one_process and wall_s and wall_s > 0 and estimated_s and math.isfinite(estimated_s + wall_s):
        difference_s = wall_s - estimated_s
        is_too_long = difference_s / wall_s < -CLOCK_TOLERANCE
        evidence += " " + say(
            "The logged times, with unlogged iterations counted as steady, add up to {estimate}; the wall "
            "time is {wall}, a difference of {difference} ({share}).",
            estimate=format_duration(estimated_s),
            wall=format_duration(wall_s),
            difference=format_duration(abs(difference_s)),
            share=format_percent(abs(difference_s) / wall_s),
        )
        # What the wall time leaves for an iteration without a line.
        unlogged_ms = steady_ms + 1000 * difference_s / (count - facts.iterations_logged)
        explanation += " " + _wall_time_sentence(difference_s / wall_s, unlogged_ms)
    return Finding(
        "clock-before-sync",
        "warning" if is_too_long else "info",
        say("Iteration times are samples, read before the GPU has finished"),
        evidence,
        explanation,
        say(
            "Judge speed by wall time over many iterations; with log_interval=1 every iteration waits for "
            "the GPU."
        )
        if is_too_long
        else "",
    )


def _wall_time_sentence(difference_share: float, unlogged_ms: float) -> str:
    """`difference_share`: wall time minus the sum of step times, over wall time."""
    if difference_share < -CLOCK_TOLERANCE and unlogged_ms <= 0:
        return say(
            "The logged times include more than one iteration each: the run was faster than they suggest."
        )
    if difference_share < -CLOCK_TOLERANCE:
        return say(
            "The logged times include waiting for the iterations before: unlogged iterations took no more "
            "than {room} each on average.",
            room=format_ms(unlogged_ms),
        )
    if difference_share <= CLOCK_TOLERANCE:
        return say("Here both clocks agree.")
    return say(
        "The rest of the wall time was spent before the first iteration (imports, data, model set-up) or in "
        "unlogged iterations: no more than {room} each on average.",
        room=format_ms(unlogged_ms),
    )
