"""Wall time that step times do not show: start-up, compilation, saves; clocks read before the GPU is done."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.explain.rules.mfu import looks_like_cpu
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis

MIN_ADVICE_SHARE = 0.2  # start-up over run time
TARGET_STARTUP_SHARE = 0.05  # of the run, where a longer run brings it; less compilation is no finding
MIN_STARTUP_SHARE = 0.01  # of the run: less is not worth a finding
MIN_STARTUP_MS = 1000.0
MIN_STARTUP_STEPS = 5  # times a steady iteration
MIN_SAVE_SHARE, MIN_SAVES_S = 0.1, 30.0  # of the run, and seconds, that training waited for checkpoints
MIN_TIMED_LINES = 20  # of fewer it is not worth saying what their clock measures
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
        evidence = [
            say("startup-compile.evidence.ledger", setup_s=startup_s, compile_s=compile_s, run_s=wall_s)
        ]
        return _startup_finding(analysis, evidence, startup_s + compile_s, compile_s, wall_s)
    split, steady_ms, total_s = analysis.time_split, facts.steady_ms, analysis.total_s
    if split is None or not steady_ms or not total_s or not math.isfinite(total_s):
        return None
    is_first = analysis.log.is_first_of_process() & np.isfinite(analysis.log.steps.ms)
    extra_ms = split.startup_ms[is_first]
    startup_s = split.startup_s
    least_ms = max(MIN_STARTUP_MS, MIN_STARTUP_STEPS * steady_ms, 1000 * MIN_STARTUP_SHARE * total_s)
    if not len(extra_ms) or not 1000 * startup_s >= least_ms:
        return None
    times: dict[str, object] = {
        "first_ms": float(analysis.log.steps.ms[is_first][0]),
        "extra_ms": float(extra_ms[0]),
        "steady_ms": steady_ms,
    }
    if split.startup_includes_eval:
        evidence = [say("startup-compile.evidence.first_unknown_eval", **times)]
    elif split.typical_eval_ms is None:
        evidence = [say("startup-compile.evidence.first_iteration", **times)]
    else:
        evidence = [say("startup-compile.evidence.first_with_eval", **times)]
    if len(extra_ms) > 1:
        evidence.append(
            say("startup-compile.evidence.all_processes", processes=len(extra_ms), startup_s=startup_s)
        )
    return _startup_finding(analysis, evidence, startup_s, startup_s, total_s)


def _startup_finding(
    analysis: Analysis, evidence: list[Message], startup_s: float, compile_s: float, run_s: float
) -> Finding:
    """`compile_s`: the part that compilation may have taken."""
    facts, run_log, split = analysis.facts, analysis.log, analysis.time_split
    # A log that stops, or quotes an excerpt, is not the whole run.
    is_whole = not (facts.ended == "cut" or run_log.is_excerpt) or run_log.ledger is not None
    includes_eval = run_log.ledger is None and split is not None and split.startup_includes_eval
    uses_compile, flag = _uses_compile(analysis), run_log.trainer.compile_off_flag
    if not run_log.trainer.uses_torch:
        explanation = say("startup-compile.explanation.without_torch")
    elif uses_compile is False:
        explanation = say("startup-compile.explanation.compile_off")
    elif uses_compile:
        explanation = say("startup-compile.explanation.compile_on")
    else:
        explanation = say("startup-compile.explanation.compile_unknown")
    share = min(1.0, startup_s / run_s)
    needs_advice = share > MIN_ADVICE_SHARE and is_whole and not includes_eval
    advice = None
    if needs_advice and flag and uses_compile and compile_s > 0:
        advice = say(
            "startup-compile.advice.compile_off",
            flag=flag,
            max_saving_s=compile_s,
            break_even_ms=1000 * compile_s / max(1, run_log.iteration_count()),
        )
    return make_finding(
        "startup-compile",
        "advice" if advice else "info",
        title=say("startup-compile.title.with_eval", startup_s=startup_s, startup_share=share)
        if includes_eval
        else say("startup-compile.title.whole_run", startup_s=startup_s, startup_share=share)
        if is_whole
        else say("startup-compile.title.partial_log", startup_s=startup_s, startup_share=share),
        evidence=evidence,
        explanation=explanation,
        advice=advice,
        at=facts.first_iteration if run_log.ledger is None else None,
        lines=analysis.lines_at([facts.first_iteration] if facts.first_iteration is not None else []),
        claims={"steady ms": facts.steady_ms} if run_log.ledger is None else None,
    )


def _uses_compile(analysis: Analysis) -> bool | None:
    """None: not in the log. What a GlassGPT run decided counts for more than what was requested."""
    setup = analysis.log.setup
    choices = setup.machine.get("choices")
    decisions = [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    chosen = next((one.get("value") for one in decisions if one.get("name") == "compile"), None)
    value = setup.settings.get("compile") if chosen is None else chosen
    return {"True": True, "on": True, "False": False, "off": False}.get(str(value))


# --- clocks ---


def save_cost(analysis: Analysis) -> Finding | None:
    """Training waited long for checkpoints to be written, as the log says."""
    waits_s = [(save.blocking_ms or 0.0) / 1000 for save in analysis.log.checkpoints]
    saves_s, run_s = sum(waits_s), analysis.total_s
    if not run_s or not MIN_SAVES_S <= saves_s < math.inf or not MIN_SAVE_SHARE * run_s <= saves_s <= run_s:
        return None
    return make_finding(
        "save-cost",
        "advice",
        title=say("save-cost.title", save_share=saves_s / run_s),
        evidence=say(
            "save-cost.evidence",
            checkpoints=sum(wait_s > 0 for wait_s in waits_s),
            saves_s=saves_s,
            longest_s=max(waits_s),
            run_s=run_s,
        ),
        explanation=say("save-cost.explanation"),
        advice=say("save-cost.advice"),
        lines=(save.line for save in analysis.log.checkpoints if save.blocking_ms),
    )


def clock_before_sync(analysis: Analysis) -> Finding | None:
    """The trainer reads its clock when kernels are launched, not when they are done, except at logged
    iterations. A warning where the logged times add up to more than the wall time."""
    run_log, facts = analysis.log, analysis.facts
    is_cpu = run_log.setup.settings.get("device") == "cpu" or looks_like_cpu(analysis)
    if not run_log.trainer.clock_reads_before_sync or is_cpu:
        return None
    interval, steady_ms, count = facts.log_interval, facts.steady_ms, run_log.iteration_count()
    if not interval or interval < 2 or not steady_ms or count <= facts.iterations_logged:
        return None
    if run_log.is_excerpt or facts.iterations_logged < MIN_TIMED_LINES:
        return None
    evidence = [
        say(
            "clock-before-sync.evidence.timed_iterations",
            logged_iterations=facts.iterations_logged,
            iterations=count,
            steady_ms=steady_ms,
        )
    ]
    explanation = [say("clock-before-sync.explanation.no_waiting", trainer=run_log.trainer.name)]
    more: Message | None = None
    wall_s, estimated_s, is_too_long = run_log.setup.wall_s, analysis.stepped_s, False
    is_one_process = len(run_log.segments) == 1
    if is_one_process and wall_s and wall_s > 0 and estimated_s and math.isfinite(estimated_s + wall_s):
        difference_s = wall_s - estimated_s
        is_too_long = difference_s / wall_s < -CLOCK_TOLERANCE
        evidence.append(
            say(
                "clock-before-sync.evidence.wall_time",
                estimated_s=estimated_s,
                wall_s=wall_s,
                difference_s=abs(difference_s),
                difference_share=abs(difference_s) / wall_s,
            )
        )
        # What the wall time leaves for an iteration without a line.
        unlogged_ms = steady_ms + 1000 * difference_s / (count - facts.iterations_logged)
        if is_too_long and unlogged_ms <= 0:
            explanation.append(say("clock-before-sync.explanation.several_iterations"))
        elif is_too_long:
            explanation.append(
                say("clock-before-sync.explanation.includes_waiting", max_unlogged_ms=unlogged_ms)
            )
        elif difference_s / wall_s <= CLOCK_TOLERANCE:
            explanation.append(say("clock-before-sync.explanation.clocks_agree"))
        else:
            more = say("clock-before-sync.more.rest_of_time", max_unlogged_ms=unlogged_ms)
    return make_finding(
        "clock-before-sync",
        "warning" if is_too_long else "info",
        title=say("clock-before-sync.title"),
        evidence=evidence,
        explanation=explanation,
        advice=say("clock-before-sync.advice") if is_too_long else None,
        more=more,
        claims={"steady ms": steady_ms},
    )
