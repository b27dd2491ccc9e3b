"""What evaluations and checkpoints cost a run, and what fewer of them would save."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import median_stderr
from glassgpt.runs.regimes import local_steady_ms
from glassgpt.runs.run_log import Bools, RunLog
from glassgpt.runs.trajectory import planned_end_iteration, positive_int_setting, takes_known_settings

MIN_SPIKE_RATIO = 1.5  # iteration with an evaluation over a steady one; nobody sees less
MIN_ADVICE_SHARE = 0.05  # evaluation time over run time
MIN_LEDGER_ADVICE_SHARE = 0.15  # the same for GlassGPT, which evaluates more on purpose
MIN_SAVING_SHARE = 0.005  # of the run: nobody changes a setting for less
MIN_EVALS_FOR_RARER, MIN_SHARE_OF_FEW = 5, 0.25  # of fewer none can be spared, unless they cost so much
MIN_EVAL_BATCHES = 20  # per evaluation, to advise
FEWER_BATCHES_SAVING = 0.75  # of an evaluation, by a quarter of its batches
# Iterations with a save against those with an evaluation only: the difference of their medians.
MIN_SAVE_STANDARD_ERRORS, MIN_SAVE_SHARE = 3.0, 0.02  # the latter of the time of an evaluation

MIN_EVALUATING_STEPS = 5  # for "every iteration evaluates"
MIN_EVALUATED_SHARE = 0.9  # evaluations over iterations, likewise
RARE_INTERVAL = 100  # iterations between two evaluations: few trainers evaluate for longer than these take

MIN_WITHOUT_CLOSING = 0.97  # of a ledger's evaluation time, in the evaluations on the way: no closing one

StepKey = tuple[int, int]  # segment, iteration


# --- the interval between evaluations ---


def effective_eval_interval(analysis: Analysis) -> int | None:
    """The interval in the settings, else the median distance of two evaluations."""
    run_log, facts = analysis.log, analysis.facts
    stated = positive_int_setting(run_log, "eval_interval")
    if stated:
        return stated
    evaluated = list(facts.eval_steps or [])
    if run_log.trainer.evaluates_before_first_step:
        evaluated += run_log.steps.iteration[run_log.is_first_of_process()].tolist()
    at = np.unique(np.array(evaluated, dtype=np.int64))
    distances = np.diff(at)
    if not len(distances):
        return None
    if len(distances) == 1:  # if most lines between the two are missing, there may have been others
        start, end = int(at[0]), int(at[1])
        logged = np.count_nonzero((run_log.steps.iteration > start) & (run_log.steps.iteration <= end))
        if 2 * int(logged) * (facts.log_interval or 1) < end - start:
            return None
    return int(np.median(distances))


def _wider_interval(analysis: Analysis, interval: int | None) -> int | None:
    """Four times the interval, or twice; a run of known length keeps at least one evaluation."""
    if not interval:
        return None
    end = planned_end_iteration(analysis.log)
    if end is None:
        return 4 * interval
    return next((factor * interval for factor in (4, 2) if factor * interval <= end), None)


def share_dropped(at: list[int], interval: int) -> float:
    """The share of these evaluations that are not at multiples of `interval`. The last one always stays."""
    last, distinct = max(at), set(at)
    remaining = sum(iteration % interval == 0 or iteration == last for iteration in distinct)
    return 1 - remaining / len(distinct)


# --- iterations that evaluate ---


@dataclass(frozen=True)
class EvalCost:
    eval_steps: tuple[StepKey, ...]  # of all evaluations, also those without a line
    save_count: int
    steady_ms: float
    typical_ms: float  # that an evaluation adds, with its save, if nothing interrupts it
    eval_ms: float  # of one evaluation, with its save where the two cannot be separated
    save_ms: float | None  # of one save, where they can
    total_s: float  # of all of them, without stalls
    run_s: float
    is_excerpt: bool  # too little is logged to see how much training there is per evaluation

    @property
    def share(self) -> float:
        return self.total_s / self.run_s

    def saving_by_interval(self, interval: int) -> float:
        """The share of the run that evaluating only at multiples of `interval` saves."""
        at = [iteration for _, iteration in self.eval_steps]
        return share_dropped(at, interval) * self.share

    def saving_in_long_run(self, interval: int, wider: int) -> float:
        """The share of a run far longer than this log that evaluating every `wider` updates saves."""
        share = self.eval_ms / (interval * self.steady_ms + self.eval_ms)
        return (1 - interval / wider) * share

    def saving_by_batches(self) -> float:
        """The share of the run that a quarter of the batches per evaluation saves. Saves stay as they are."""
        saves_s = self.save_count * (self.save_ms or 0.0) / 1000
        return FEWER_BATCHES_SAVING * max(0.0, self.total_s - saves_s) / self.run_s


def eval_spikes(analysis: Analysis) -> Finding | None:
    """Iterations that evaluate are slow: how slow, what share of the run, what to change."""
    run_log = analysis.log
    if run_log.ledger is not None:
        return _eval_share_in_ledger(analysis)
    if not run_log.trainer.step_time_includes_eval:
        return _eval_share_in_logged_times(analysis)
    cost = _eval_cost(analysis)
    if cost is None or cost.steady_ms + cost.typical_ms < MIN_SPIKE_RATIO * cost.steady_ms:
        return None
    trainer, interval, share = run_log.trainer, effective_eval_interval(analysis), cost.share
    spike_ms = cost.steady_ms + cost.typical_ms
    evidence = [say("eval-spikes.evidence.spike_and_steady", spike_ms=spike_ms, steady_ms=cost.steady_ms)]
    if not cost.is_excerpt:
        evidence.append(
            say(
                "eval-spikes.evidence.total_cost",
                evaluations=len(cost.eval_steps),
                eval_s=cost.total_s,
                run_s=cost.run_s,
                eval_share=share,
            )
        )
    if cost.save_ms is not None:
        evidence.append(
            say(
                "eval-spikes.evidence.eval_and_save",
                eval_ms=cost.eval_ms,
                save_ms=cost.save_ms,
                saves=cost.save_count,
            )
        )
    if trainer.eval_time_cause:
        cause = trainer.eval_time_cause
    elif cost.save_count:
        cause = say("eval-spikes.explanation.clock_includes_save", trainer=trainer.name)
    else:
        cause = say("eval-spikes.explanation.clock_includes_eval", trainer=trainer.name)
    advice: list[Message | None] = []
    if not trainer.rarer_eval_advice:
        advice = [_interval_advice(analysis, cost), _batches_advice(analysis, cost)]
    elif interval:
        saving = cost.saving_in_long_run(interval, 4 * interval)
        if saving >= MIN_SAVING_SHARE:
            values = {"old_interval": interval, "new_interval": 4 * interval, "interval_saving": saving}
            advice = [trainer.rarer_eval_advice.with_values(**values)]
    return make_finding(
        "eval-spikes",
        "advice" if share >= MIN_ADVICE_SHARE and not cost.is_excerpt else "info",
        title=say("eval-spikes.title.spikes", ratio=spike_ms / cost.steady_ms),
        evidence=evidence,
        explanation=cause,
        advice=advice,
        more=say("eval-spikes.more.updates_unaffected"),
        claims={"cause of slow iterations": "evaluation", "steady ms": analysis.facts.steady_ms},
        lines=analysis.lines_at(iteration for _, iteration in cost.eval_steps),
    )


def _eval_cost(analysis: Analysis) -> EvalCost | None:
    run_log, split = analysis.log, analysis.time_split
    run_s = analysis.total_s
    if not analysis.facts.steady_ms or not run_s or split is None or not math.isfinite(run_s):
        return None
    typical_ms = split.typical_eval_ms
    evaluated = {
        (evaluation.segment, evaluation.iteration)
        for evaluation in run_log.evals
        if evaluation.iteration is not None
    }
    if typical_ms is None or typical_ms <= 0 or not evaluated:
        return None
    steps, is_first, includes_eval = run_log.steps, run_log.is_first_of_process(), run_log.includes_eval()
    if run_log.trainer.evaluates_before_first_step:
        evaluated |= set(_step_keys(run_log, is_first))
    saved = evaluated & {
        (save.segment, save.iteration) for save in run_log.checkpoints if save.iteration is not None
    }
    eval_ms, save_ms = typical_ms, None
    # Where only some evaluations were followed by a save, the difference is the save's.
    is_spike: Bools = includes_eval & ~is_first & np.isfinite(steps.ms) & ~split.is_stalled_eval
    steady_ms = analysis.facts.steady_ms
    if is_spike.any():  # of the regimes that they are in
        steady_ms = float(np.median(local_steady_ms(analysis.regimes, len(steps))[is_spike]))
    keys, added_ms = _step_keys(run_log, is_spike), split.pause_ms[is_spike]
    has_save = np.array([key in saved for key in keys], dtype=bool)
    has_eval = np.array([key in evaluated for key in keys], dtype=bool)  # a fork may save between, too
    with_save_ms, without_save_ms = added_ms[has_save], added_ms[has_eval & ~has_save]
    if len(with_save_ms) >= 2 and len(without_save_ms) >= 2:
        difference = float(np.median(with_save_ms) - np.median(without_save_ms))
        error = math.hypot(median_stderr(with_save_ms), median_stderr(without_save_ms))
        if difference > max(MIN_SAVE_STANDARD_ERRORS * error, MIN_SAVE_SHARE * typical_ms):
            eval_ms, save_ms = float(np.median(without_save_ms)), difference
    return EvalCost(
        eval_steps=tuple(sorted(evaluated)),
        save_count=len(saved),
        steady_ms=steady_ms,
        typical_ms=typical_ms,
        eval_ms=eval_ms,
        save_ms=save_ms,
        total_s=split.pauses_s - split.periodic_s,
        run_s=run_s,
        is_excerpt=len(evaluated) < 2 or effective_eval_interval(analysis) is None,
    )


def _step_keys(run_log: RunLog, rows: Bools) -> list[StepKey]:
    steps = run_log.steps
    return list(zip(steps.segment[rows].tolist(), steps.iteration[rows].tolist(), strict=True))


def _has_run_start(run_log: RunLog) -> bool:
    return bool(run_log.segments) and run_log.segments[0].has_startup


def _interval_advice(analysis: Analysis, cost: EvalCost) -> Message | None:
    run_log, interval = analysis.log, effective_eval_interval(analysis)
    wider = _wider_interval(analysis, interval)
    if not interval:
        return None if run_log.is_excerpt else _half_as_often(analysis, cost.share)
    if not wider:
        return None
    # In a log that is too short, or lacks its beginning, the evaluations are not where they usually are.
    if cost.is_excerpt or not _has_run_start(run_log) or wider > (analysis.facts.last_iteration or 0):
        saving = cost.saving_in_long_run(interval, wider)
        if saving < MIN_SAVING_SHARE:
            return None
        return say(
            "eval-spikes.advice.raise_long_run",
            interval_setting=_interval_name(run_log),
            old_interval=interval,
            new_interval=wider,
            interval_saving=saving,
        )
    saving = cost.saving_by_interval(wider)
    return _raise_interval(run_log, interval, wider, saving) if saving >= MIN_SAVING_SHARE else None


def _half_as_often(analysis: Analysis, share: float) -> Message | None:
    is_spare = len(analysis.log.evals) >= MIN_EVALS_FOR_RARER or share >= MIN_SHARE_OF_FEW
    return say("eval-spikes.advice.half_as_often") if is_spare and share / 2 >= MIN_SAVING_SHARE else None


def _interval_name(run_log: RunLog) -> str | Message:
    """The trainer's name for the setting, where that is known."""
    own_name = _own_name(run_log, "eval_interval")
    is_known = own_name in run_log.trainer.setting_names or "eval_interval" in run_log.setup.settings
    return own_name if is_known or takes_known_settings(run_log) else say("eval-spikes.phrase.interval")


def _own_name(run_log: RunLog, setting: str) -> str:
    names = run_log.trainer.setting_names.items()
    return next((own for own, ours in names if ours == setting), setting)


def _raise_interval(run_log: RunLog, interval: int, wider: int, saving: float) -> Message:
    return say(
        "eval-spikes.advice.raise_interval",
        interval_setting=_interval_name(run_log),
        old_interval=interval,
        new_interval=wider,
        interval_saving=saving,
    )


def _batches_advice(analysis: Analysis, cost: EvalCost) -> Message | None:
    """Only an upper bound: the time of a save may be in that of its evaluation."""
    if cost.is_excerpt:
        return None
    batches = positive_int_setting(analysis.log, "eval_iters")
    interval, saving = effective_eval_interval(analysis), cost.saving_by_batches()
    if interval and not _has_run_start(analysis.log):
        saving = cost.saving_in_long_run(interval, 4 * interval)
    if saving < MIN_SAVING_SHARE or (batches is not None and batches < 4 * MIN_EVAL_BATCHES):
        return None
    if batches is None:
        return say("eval-spikes.advice.quarter_batches", batches_saving=saving)
    return say(
        "eval-spikes.advice.lower_batches",
        batches_setting=_own_name(analysis.log, "eval_iters"),
        old_batches=batches,
        new_batches=batches // 4,
        batches_saving=saving,
    )


def _eval_share_in_logged_times(analysis: Analysis) -> Finding | None:
    """A trainer that stops its clock while it evaluates, and logs the time of the evaluation."""
    times_ms = [one.ms for one in analysis.log.evals if one.ms is not None and math.isfinite(one.ms)]
    eval_s = sum(times_ms) / 1000
    # All that is timed, iterations and evaluations; else the wall time.
    wall_s = analysis.log.setup.wall_s if len(analysis.log.segments) == 1 else None
    run_s = analysis.total_s or wall_s
    # Of a resumed run the time may be that of its last process: then evaluations take more than all of it.
    if not run_s or not math.isfinite(run_s) or not MIN_ADVICE_SHARE * run_s <= eval_s <= run_s:
        return None
    share = eval_s / run_s
    # No numbers: some trainers count this interval in updates, and number their lines by micro-batches.
    advice = _half_as_often(analysis, share)
    return make_finding(
        "eval-spikes",
        "advice" if advice else "info",
        title=say("eval-spikes.title.share_of_run", eval_share=share),
        evidence=say(
            "eval-spikes.evidence.total_cost",
            evaluations=len(times_ms),
            eval_s=eval_s,
            run_s=run_s,
            eval_share=share,
        ),
        advice=advice,
    )


def _eval_share_in_ledger(analysis: Analysis) -> Finding | None:
    """GlassGPT's step times exclude evaluation; the ledger of its journal has the time of each phase."""
    ledger, evals = analysis.log.ledger or {}, analysis.log.evals
    wall_s, eval_s = sum(ledger.values()), ledger.get("eval", 0.0)
    if not (math.isfinite(wall_s) and wall_s > 0 and eval_s >= MIN_LEDGER_ADVICE_SHARE * wall_s):
        return None
    share = eval_s / wall_s
    # The settings govern the evaluations on the way: neither the closing one of the whole split, nor samples.
    regular_s = [one.ms / 1000 for one in evals if one.ms and math.isfinite(one.ms)]
    advice = []
    interval = effective_eval_interval(analysis)
    wider = _wider_interval(analysis, interval)
    at = [evaluation.iteration for evaluation in evals if evaluation.iteration is not None]
    if interval and wider and at:
        saving = min(eval_s, sum(regular_s)) / wall_s * share_dropped(at, wider)
        advice = (
            [_raise_interval(analysis.log, interval, wider, saving)] if saving >= MIN_SAVING_SHARE else []
        )
    saved_s = FEWER_BATCHES_SAVING * sum(regular_s)
    has_closing = sum(regular_s) < MIN_WITHOUT_CLOSING * eval_s
    if regular_s and not has_closing:
        # So far each is of the whole validation split. With fewer tokens a closing one is added.
        saved_s -= regular_s[-1] / 2
    if (saving := min(saved_s, eval_s) / wall_s) >= MIN_SAVING_SHARE:
        advice.append(say("eval-spikes.advice.quarter_eval_tokens", eval_tokens_saving=saving))
    times: dict[str, object] = {"evaluations": len(evals), "eval_s": eval_s, "run_s": wall_s}
    return make_finding(
        "eval-spikes",
        "advice",
        title=say("eval-spikes.title.share_of_run", eval_share=share),
        evidence=say("eval-spikes.evidence.ledger_with_closing", regular_s=sum(regular_s), **times)
        if regular_s and has_closing
        else say("eval-spikes.evidence.ledger_times", **times),
        explanation=say("eval-spikes.explanation.ledger_separate"),
        advice=advice,
    )


# --- every iteration evaluates ---


def evaluates_every_step(analysis: Analysis) -> Finding | None:
    """Every iteration evaluates, or every logged one: no line shows what training alone takes."""
    run_log, interval = analysis.log, effective_eval_interval(analysis)
    has_eval_times = run_log.ledger is not None or any(one.ms is not None for one in run_log.evals)
    # What an unknown trainer counts may be epochs, or its log lines.
    counts_updates = not (run_log.trainer.iterations_are_epochs or run_log.trainer.reads_any_log)
    if not interval or run_log.is_excerpt or has_eval_times or not counts_updates:
        return None
    if run_log.trainer.step_time_includes_eval:
        timed = np.isfinite(run_log.steps.ms) & ~run_log.is_first_of_process()
        if np.count_nonzero(timed) < MIN_EVALUATING_STEPS or not np.all(run_log.includes_eval()[timed]):
            return None
        evidence = say(
            "eval-spikes.evidence.all_include_eval",
            timed_iterations=np.count_nonzero(timed),
            median_ms=float(np.median(run_log.steps.ms[timed])),
        )
        explanation = say("eval-spikes.explanation.clock_includes_eval", trainer=run_log.trainer.name)
    else:
        iterations = run_log.iteration_count()
        evaluated = {(one.segment, one.iteration) for one in run_log.evals if one.iteration is not None}
        if iterations < MIN_EVALUATING_STEPS or len(evaluated) < MIN_EVALUATED_SHARE * iterations:
            return None
        evidence = say(
            "eval-spikes.evidence.times_not_logged", evaluations=len(run_log.evals), iterations=iterations
        )
        explanation = say("eval-spikes.explanation.clock_excludes_eval")
    return make_finding(
        "eval-spikes",
        "warning" if interval == 1 else "advice" if interval < RARE_INTERVAL else "info",
        title=say("eval-spikes.title.every_iteration")
        if interval == 1
        else say("eval-spikes.title.every_logged_iteration"),
        evidence=evidence,
        explanation=explanation,
        advice=say("eval-spikes.advice.half_as_often"),
    )
