"""Analysis: what follows from a run's log. explain, compare, report and import ask it.

    run = Analysis(read_run_log("train.log"))
    run.steady_ms, run.size.flops_per_token, run.facts.ended

Each value is computed once, on first use. None: the log does not support it. Does not import torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from glassgpt.estimate.cards import Card
from glassgpt.record.ledger import PHASES
from glassgpt.runs.curve_statistics import end_means, median_by_iteration, recurrence
from glassgpt.runs.exit_status import infer_exit_status
from glassgpt.runs.facts import Facts
from glassgpt.runs.final_loss import FinalLossForecast, forecast_final_loss
from glassgpt.runs.ladder_progress import LadderProgress, find_ladder_progress
from glassgpt.runs.loss_rise import (
    Explosion,
    LossJump,
    LossRise,
    find_early_explosion,
    find_explosions,
    find_loss_jump,
    find_loss_rise,
)
from glassgpt.runs.model_size import (
    MAX_MFU,
    DeviceThroughput,
    IterationFlops,
    ModelSize,
    device_count,
    estimate_model_size,
    infer_flops_per_iteration,
    known_device_count,
    mfu_unit_count,
    replica_count,
    stated_peak_flops,
)
from glassgpt.runs.noise import EvalNoise, clear_difference, estimate_eval_noise
from glassgpt.runs.past_best import (
    GapGrowth,
    PastBest,
    TrainValGap,
    find_gap_growth,
    find_past_best,
    find_train_val_gap,
)
from glassgpt.runs.regimes import Regime, find_regimes, find_wander
from glassgpt.runs.run_log import ExitStatus, Floats, Ints, LoggedCheckpoint, LoggedEvaluation, RunLog
from glassgpt.runs.step_clock import stamped_seconds
from glassgpt.runs.time_split import TimeSplit, split_time
from glassgpt.runs.trajectory import (
    Trajectory,
    epochs_done,
    planned_end_iteration,
    positive_int_setting,
    seconds_between,
    settings_product,
    trajectory_of,
    untrained_loss,
)

MIN_STAMPED_SHARE = 0.5  # of the whole time: lines with stamps that cover less are not of all of the run
MIN_STEPPED_SHARE = 0.95  # of the time by stamps: with less in iterations, the rest went elsewhere
MIN_STATED_SHARE = 0.9  # of the time of its iterations: a process says less only of a part of them
MIN_MFU = 1.0  # percent; a smaller one is rounded too much
MAX_RISE_BEFORE_JUMP, MIN_FALL_AFTER_JUMP = 0.25, 0.05  # of a jump of the loss


@dataclass(frozen=True)
class Analysis:
    log: RunLog
    card: Card | None = None  # the one it ran on, if the user names it (--gpu)

    # --- the course of the run ---

    @cached_property
    def trajectory(self) -> Trajectory:
        return trajectory_of(self.log)

    def lines_at(self, iterations: Iterable[int]) -> tuple[int, ...]:
        """The line numbers of these iterations in the log, in their order; without those that are not known.

        Of an iteration that a resume repeated, the later line."""
        steps, rows = self.log.steps, self.trajectory.rows
        if not self.log.has_line_numbers or not self.log.has_iteration_numbers:
            return ()
        lines = steps.line[rows[np.isin(steps.iteration[rows], list(iterations))]]
        return tuple(int(line) for line in lines if line > 0)

    def eval_lines_at(self, iterations: Iterable[int]) -> tuple[int, ...]:
        """The same for the lines of evaluations."""
        wanted = set(iterations) if self.log.has_line_numbers else set()
        return tuple(one.line for one in self.trajectory.evals if one.iteration in wanted and one.line > 0)

    @cached_property
    def exit_status(self) -> ExitStatus | None:
        return infer_exit_status(self.log)

    @cached_property
    def eval_noise(self) -> EvalNoise | None:
        """The noise of one evaluation, compared with others of this run."""
        losses = self.trajectory.finite_losses()[1]
        return estimate_eval_noise(self.log, self.trajectory.evals, losses, within_run=True)

    @cached_property
    def past_best(self) -> PastBest | None:
        """None where the last evaluations are not clearly above the best one."""
        return find_past_best(self.log, self.trajectory, self.eval_noise)

    @cached_property
    def train_val_gap(self) -> TrainValGap | None:
        """Both losses at the last evaluation, so far apart that only memorising explains it."""
        return find_train_val_gap(self.log, self.trajectory, self.eval_noise, self.epochs)

    @cached_property
    def gap_growth(self) -> GapGrowth | None:
        """Of both losses, from the first evaluations to the last, beyond noise."""
        return find_gap_growth(self.log, self.trajectory)

    @property
    def epochs(self) -> float | None:
        """Passes over the training data, where the log counts them."""
        return epochs_done(self.log)

    @cached_property
    def ladder_progress(self) -> LadderProgress | None:
        """Which baselines of its dataset the validation loss passed, and when."""
        return find_ladder_progress(self.log, self.trajectory, self.eval_noise)

    @property
    def has_overfitted(self) -> bool:
        """By the course of its evaluations, or by the gap between both losses of the last."""
        fell_meanwhile = self.past_best is not None and self.past_best.train_losses is not None
        return fell_meanwhile or (self.train_val_gap is not None and not self.train_val_gap.is_alone)

    @cached_property
    def eval_noise_across_runs(self) -> EvalNoise | None:
        """The noise of one evaluation, compared with those of another run."""
        return estimate_eval_noise(self.log, self.trajectory.evals, self.trajectory.finite_losses()[1])

    @cached_property
    def explosions(self) -> list[Explosion]:
        """Of the training loss: it rose to a multiple within a few iterations."""
        at, losses = self.trajectory.finite_losses()
        is_evaluated = any(one.iteration == 0 for one in self.log.evals[:1])
        is_comparable = is_evaluated and self.log.trainer.evaluates_next_token_loss
        initial = untrained_loss(self.log) if is_comparable else None
        early = None if initial is None else find_early_explosion(at, losses, *initial)
        if early is None:
            return find_explosions(at, losses, self._later_starts)
        rest = at >= early.until  # the one row of its end, if it did not recover
        return [early, *find_explosions(at[rest], losses[rest], self._later_starts)]

    @cached_property
    def loss_recurs(self) -> int | None:
        """After how many logged losses their ups and downs come again: the data are in one order."""
        return recurrence(self.trajectory.finite_losses()[1])

    @cached_property
    def loss_jump(self) -> LossJump | None:
        """Of the training loss: from one line to the next, and it stayed up."""
        if self.explosions:
            return None
        jump = find_loss_jump(*self.trajectory.finite_losses(), self._later_starts)
        if jump is None or self.loss_rise is None:
            return jump
        # One level before it and a fall after it: something changed there, and the model goes on learning.
        size = jump.loss_after - jump.loss_before
        at, losses = self.trajectory.finite_losses()
        early, *_, late = np.array_split(losses[at >= jump.iteration], 5)
        was_low = jump.loss_before < self.loss_rise.lowest_loss + MAX_RISE_BEFORE_JUMP * size
        falls_again = np.median(early) - np.median(late) > MIN_FALL_AFTER_JUMP * size
        return jump if was_low and falls_again else None

    @cached_property
    def _later_starts(self) -> Ints:
        """Iterations at which the processes after the first began."""
        at, _ = self.trajectory.finite_losses()
        starts = {part.first_iteration for part in self.log.segments if part.first_iteration is not None}
        return np.array(sorted(start for start in starts if len(at) and start > at[0]), dtype=np.int64)

    @cached_property
    def loss_rise(self) -> LossRise | None:
        """A slow rise of the smoothed training loss; None unless it stayed up until the end, and where the
        validation loss falls meanwhile."""
        rise = None if self.explosions else find_loss_rise(*self.trajectory.finite_losses())
        at, values = self.trajectory.val_curve()
        if rise is None or not len(values):
            return rise
        least = clear_difference(self.eval_noise, float(values[-1]))
        return None if rise.is_contradicted(at, values, least) else rise

    @cached_property
    def final_loss(self) -> FinalLossForecast | None:
        """The loss at the planned end, of a run that is on its way there or was cut short."""
        if self.loss_rise is not None or self.explosions:
            return None
        planned = planned_end_iteration(self.log)
        return forecast_final_loss(self.log, self.trajectory, self.past_best, planned)

    # --- time ---

    @cached_property
    def steady_ms(self) -> float | None:
        """The median over iterations without evaluation, checkpoint or start-up."""
        steady = self.log.is_steady()
        return median_by_iteration(self.log.steps.ms[steady], self.log.iterations_timed()[steady])

    @cached_property
    def eval_overhead_ms(self) -> float | None:
        """The median over iterations with an evaluation, except a process's first, minus steady_ms."""
        log = self.log
        with_eval = log.includes_eval() & ~log.is_first_of_process() & np.isfinite(log.steps.ms)
        eval_ms = _median(log.steps.ms[with_eval])
        return eval_ms - self.steady_ms if eval_ms is not None and self.steady_ms is not None else None

    @cached_property
    def first_iteration_ms(self) -> float | None:
        log = self.log
        if log.first_update_ms:
            return log.first_update_ms
        is_counted = log.has_iteration_numbers and len(log.steps) > 0 and not log.segments[0].resumed
        is_later = is_counted and log.steps.iteration[0] > max(1, log.trainer.first_iteration)
        if self._times_are_of_several or is_later:
            return None
        return float(log.steps.ms[0]) if len(log.steps) and math.isfinite(log.steps.ms[0]) else None

    @property
    def _times_are_of_several(self) -> bool:
        """Each time of a log is the mean of several iterations. A journal's are too, but the facts of our own
        runs are documented as over intervals."""
        timed = self.log.iterations_timed()
        return self.log.trainer.reader is not None and 2 * timed[timed > 1].sum() > timed.sum()

    @cached_property
    def startup_ms(self) -> float | None:
        """What the first iteration's time has beyond a steady step and its evaluation."""
        log, first_ms, steady_ms, eval_ms = (
            self.log, self.first_iteration_ms, self.steady_ms, self.eval_overhead_ms
        )  # fmt: skip
        if first_ms is None or steady_ms is None:
            return None
        if log.first_update_ms is not None:
            return max(0.0, first_ms - steady_ms)
        if not log.is_first_of_process()[0]:
            return None
        evaluates = bool(log.includes_eval()[0]) or log.trainer.evaluates_before_first_step
        if evaluates and eval_ms is None and log.includes_eval()[0]:
            return None
        return max(0.0, first_ms - steady_ms - (eval_ms if evaluates and eval_ms else 0.0))

    @cached_property
    def regimes(self) -> tuple[Regime, ...]:
        """Stretches with a steady time of their own."""
        return find_regimes(self.log)

    @cached_property
    def time_split(self) -> TimeSplit | None:
        """Every row's time as training, evaluation, stall and start-up."""
        return split_time(self.log, self.regimes)

    @property
    def eval_overhead_typical_ms(self) -> float | None:
        """What an evaluation adds to an iteration of its regime if nothing interrupts it: the median."""
        return self.time_split.typical_eval_ms if self.time_split else None

    @cached_property
    def seconds_by_phase(self) -> dict[str, float] | None:
        """Where the time went: the ledger's phases, or what the logged times distinguish."""
        ledger, split = self.log.ledger, self.time_split
        if ledger is not None:
            seconds = dict.fromkeys(PHASES, 0.0)
            for phase, spent in ledger.items():
                if math.isfinite(spent) and spent > 0:
                    # Phases that this version does not know are counted as `other`.
                    seconds[phase if phase in PHASES else "other"] += spent
        elif split is not None and split.is_complete and math.isfinite(split.total_s):
            pauses_s, stall_s, startup_s = split.pauses_s, split.stall_s, split.startup_s
            train_s = split.total_s - pauses_s - stall_s - startup_s
            start = "startup_and_eval" if split.startup_includes_eval else "startup"
            seconds = {start: startup_s, "train": train_s, "pauses": pauses_s, "stall": stall_s}
            rest_s = (self.total_s or split.total_s) - split.total_s
            seconds["other"], seconds["train"] = max(0.0, rest_s), train_s + min(0.0, rest_s)
        else:
            return None
        return {phase: spent for phase, spent in seconds.items() if spent > 0} or None

    @cached_property
    def total_s(self) -> float | None:
        """The ledger's sum where there is one. Else what the whole took by the log's own words, unless the
        times of its iterations are clearly more; or by its time stamps, where these are clearly more.
        Else those times: with evaluations and saves, they leave out only what came before and after."""
        if self.log.ledger is not None:
            return sum(self.log.ledger.values())
        stepped_s, measured_s = self.stepped_s, self.measured_s
        if stepped_s is None:
            return measured_s
        if measured_s is None or self.log.trainer.step_time_includes_eval:
            return stepped_s
        is_stated = measured_s == self.log.setup.wall_s and measured_s > MIN_STATED_SHARE * stepped_s
        return measured_s if is_stated or stepped_s < MIN_STEPPED_SHARE * measured_s else stepped_s

    @cached_property
    def stepped_s(self) -> float | None:
        """The logged times, and for every iteration without one the steady time of its regime."""
        return self.time_split.total_s if self.time_split else None

    @cached_property
    def stamped_s(self) -> float | None:
        """From the first to the last line with a date and a time; None of several processes, or of the cells
        of a notebook, which somebody ran one by one."""
        log = self.log
        is_notebook = not log.has_line_numbers and not log.columns
        has_one_row = bool(log.columns) and len(log.steps) < 2
        if len(log.segments) > 1 or log.is_excerpt or is_notebook or has_one_row:
            return None
        wall_s = log.setup.wall_s
        stamped_s = stamped_seconds(log.stamps, log.first_line, log.last_line, log.steps.line)
        is_part = stamped_s is not None and wall_s is not None and stamped_s < MIN_STAMPED_SHARE * wall_s
        return None if is_part else stamped_s

    @cached_property
    def measured_s(self) -> float | None:
        """What the whole process took, as it says itself, or by its time stamps."""
        wall_s = self.log.setup.wall_s
        is_known = len(self.log.segments) == 1 and wall_s is not None and 0 < wall_s < math.inf
        return wall_s if is_known else self.stamped_s

    @cached_property
    def plain_total_s(self) -> float | None:
        """The logged times, plus steady_ms for every iteration between two lines or without a time.

        Where a resume changed the batch size, each process has its own steady time.
        """
        log, steps, steady_ms = self.log, self.log.steps, self.steady_ms
        if log.ledger is not None:
            return sum(log.ledger.values())
        if steady_ms is None:
            return None
        is_timed = np.isfinite(steps.ms)
        timed_ms = float(steps.ms[is_timed].sum()) + log.left_out.ms
        if not log.has_varying_batch_tokens:
            untimed = log.iteration_count() - int(is_timed.sum()) - log.left_out.timed
            return (timed_ms + untimed * steady_ms) / 1000
        usual = is_timed & ~log.is_first_of_process() & ~log.includes_eval()
        untimed_ms = 0.0
        for segment in np.unique(steps.segment):
            rows = steps.segment == segment
            segment_ms = _median(steps.ms[rows & usual])
            iterations = int(steps.iteration[rows][-1] - steps.iteration[rows][0]) + 1
            untimed = iterations - int(is_timed[rows].sum()) - log.segments[segment].left_out.timed
            untimed_ms += untimed * (steady_ms if segment_ms is None else segment_ms)
        return (timed_ms + untimed_ms) / 1000

    @cached_property
    def overhead_share(self) -> float | None:
        """The share of start-up, evaluations and checkpoints in the plain total, with all that slowed them.
        None where step times exclude evaluations."""
        log, steady_ms, total_s = self.log, self.steady_ms, self.plain_total_s
        if not total_s:
            return None
        if log.ledger is not None:
            overhead = ("startup", "compile", "eval", "checkpoint")
            return sum(log.ledger.get(name, 0.0) for name in overhead) / total_s
        if steady_ms is None or not log.trainer.step_time_includes_eval:
            return None
        slow = (log.is_first_of_process() | log.includes_eval()) & np.isfinite(log.steps.ms)
        return float(np.maximum(log.steps.ms[slow] - steady_ms, 0.0).sum()) / 1000 / total_s

    def seconds_and_share_after(
        self, after: int, until: int, rows: Ints | None = None
    ) -> tuple[float, float] | None:
        """Seconds of the iterations past `after`, up to `until`, with their evaluations, and the share of the
        run.

        `rows`: count these log lines only, instead of the trajectory's.
        """
        steps, total_s, trajectory = self.log.steps, self.total_s, self.trajectory
        if rows is not None:
            trajectory = replace(trajectory, iteration=steps.iteration[rows], ms=steps.ms[rows])
        seconds = seconds_between(trajectory, after, until, self.steady_ms)
        if seconds and rows is None and (split := self.time_split) is not None:
            is_after = (split.apart_iteration > after) & (split.apart_iteration <= until)
            seconds += float(split.apart_ms[is_after].sum()) / 1000
        if seconds and self.stepped_s and self.measured_s == total_s and total_s:
            seconds *= max(1.0, total_s / self.stepped_s)  # what no iteration's time has is spread over all
        if not total_s or not seconds or not math.isfinite(total_s) or not 0 < seconds <= total_s:
            return None
        return seconds, seconds / total_s

    # --- tokens, parameters and FLOPs ---

    @cached_property
    def tokens_per_iteration(self) -> int | None:
        """As logged, or from tokens per second, or from the settings where an iteration is a whole batch."""
        setup, trainer, steps = self.log.setup, self.log.trainer, self.log.steps
        if setup.tokens_per_iteration:
            return setup.tokens_per_iteration
        if trainer.tokens_per_s_is_of_step:
            rows = self.log.is_steady() & ~np.isnan(steps.tokens_per_s)
            if tokens := _median((steps.tokens_per_s * steps.ms / 1000)[rows]):
                return round(tokens)
        if trainer.steps_are_micro_batches:
            return None
        if device_count(self.log) > 1 and not trainer.takes_known_settings:
            return None  # its batch_size may be that of one device
        batch_tokens = positive_int_setting(self.log, "batch_tokens")
        return batch_tokens or settings_product(
            self.log, "batch_size", "block_size", "gradient_accumulation_steps"
        )

    @cached_property
    def tokens_per_s(self) -> float | None:
        """Of steady iterations: from the logged tokens per iteration, else the median of those printed, by
        iterations as of their times, else from the settings, whose batch size may be that of one device."""
        log = self.log
        steady = log.is_steady()
        rows = steady if steady.any() else ~log.is_first_of_process()  # no row is steady without times
        rows &= np.isfinite(log.steps.tokens_per_s) & (log.steps.tokens_per_s > 0)  # 0: not counted
        printed = median_by_iteration(log.steps.tokens_per_s[rows], log.iterations_timed()[rows])
        is_logged = bool(log.setup.tokens_per_iteration) or log.trainer.tokens_per_s_is_of_step
        if self.tokens_per_iteration and self.steady_ms and (is_logged or printed is None):
            return self.tokens_per_iteration / self.steady_ms * 1000
        return printed

    @cached_property
    def tokens_seen(self) -> int | None:
        """Up to the last logged iteration."""
        last = self._iteration(-1)
        if last is None or last < 0:
            return None
        seen = self.log.tokens_seen_at(np.array([last]), self.tokens_per_iteration)
        return None if seen is None else round(float(seen[0]))

    @cached_property
    def tokens_of_this_run(self) -> float | None:
        """Without those of a run that it was initialised from."""
        counted = self.log.tokens_of_this_run()
        return self.tokens_seen if counted is None else counted

    @cached_property
    def iteration_flops(self) -> IterationFlops | None:
        """As the logged MFU and step times imply; None where the log has none, or rounds too much."""
        return infer_flops_per_iteration(self.log)

    @cached_property
    def size(self) -> ModelSize:
        """Parameters and FLOPs per token."""
        return estimate_model_size(self.log, self.iteration_flops, self.tokens_per_iteration)

    @cached_property
    def total_flops(self) -> float | None:
        """FLOPs of all tokens seen."""
        flops_per_token = self.size.flops_per_token
        return (
            self.tokens_seen * flops_per_token if self.tokens_seen is not None and flops_per_token else None
        )

    @cached_property
    def achieved_tflops(self) -> float | None:
        """All devices together: FLOPs per token x tokens per second; else by the logged MFU.

        By the MFU first where devices share a model: a trainer may count their common tokens several times.
        """
        shares_model = replica_count(self.log) < device_count(self.log)
        if self.iteration_flops and self.steady_ms and (shares_model or not self.size.flops_per_token):
            return self.iteration_flops.flops / self.steady_ms * 1000 / 1e12
        if self.size.flops_per_token and self.tokens_per_s:
            return self.size.flops_per_token * self.tokens_per_s / 1e12
        mfu, peak = self.reported_mfu, stated_peak_flops(self.log)
        units = mfu_unit_count(self.log)
        return mfu / 100 * peak * units / 1e12 if mfu and MIN_MFU <= mfu <= MAX_MFU and peak else None

    @cached_property
    def achieved_tflops_per_device(self) -> float | None:
        """None where the log does not say how many devices there are."""
        devices = known_device_count(self.log)
        return self.achieved_tflops / devices if self.achieved_tflops is not None and devices else None

    @cached_property
    def reported_mfu(self) -> float | None:
        """Percent, the median of all lines."""
        mfu = self.log.steps.mfu
        return _median(mfu[np.isfinite(mfu)])

    @cached_property
    def throughput(self) -> DeviceThroughput | None:
        """One steady iteration on what the MFU of a trainer with a fixed peak is of."""
        trainer, peak = self.log.trainer, stated_peak_flops(self.log)
        if not peak or not self.steady_ms or not trainer.mfu_peak or not trainer.mfu_is_running_average:
            return None
        if self.iteration_flops is None:
            return None
        flops = self.iteration_flops.flops / mfu_unit_count(self.log)
        flops_per_s = flops / (self.steady_ms / 1000)
        if not math.isfinite(flops_per_s):
            return None
        error = self.iteration_flops.relative_error
        return DeviceThroughput(flops, error, 100 * flops_per_s / peak, flops_per_s)

    # --- in numbers ---

    @cached_property
    def facts(self) -> Facts:
        log, steps, evals = self.log, self.log.steps, self.log.evals
        steady = log.is_steady()
        losses = steps.loss[steps.has_loss]
        nan_rows = np.flatnonzero(np.isnan(steps.loss) & steps.has_loss)
        val_losses = [
            (evaluation.val_loss, evaluation.iteration)
            for evaluation in evals
            if evaluation.val_loss is not None
        ]
        comparable = [one for one in val_losses if not math.isnan(one[0])]
        best_val_loss, best_val_step = min(comparable, key=lambda one: one[0], default=(None, None))
        wander = find_wander(log, self.regimes)
        loss_ends = end_means(self.trajectory.finite_losses()[1])
        return Facts(
            iterations_logged=log.iterations_logged,
            first_iteration=self._iteration(0),
            last_iteration=self._iteration(-1),
            log_interval=log.log_interval() if log.has_regular_interval else None,
            tokens_per_iteration=self.tokens_per_iteration,
            parameters=self.size.parameters,
            steady_ms=self.steady_ms,
            steady_p95_ms=float(np.percentile(steps.ms[steady], 95))
            if steady.any() and not self._times_are_of_several
            else None,
            first_iteration_ms=self.first_iteration_ms,
            startup_ms=self.startup_ms,
            eval_steps=self._eval_steps(),
            eval_overhead_ms=self.eval_overhead_ms,
            checkpoint_steps=self._checkpoint_steps(),
            estimated_total_s=self.plain_total_s,
            overhead_share=self.overhead_share,
            tokens_per_s=self.tokens_per_s,
            mfu_reported_steady=self.reported_mfu,
            flops_per_token=self.size.flops_per_token,
            achieved_tflops=self.achieved_tflops,
            device_count=known_device_count(log),
            data_parallel_size=replica_count(log) if known_device_count(log) else None,
            achieved_tflops_per_device=self.achieved_tflops_per_device,
            val_metric=log.val_metric if val_losses else None,
            best_val_loss=best_val_loss,
            best_val_step=best_val_step if log.has_iteration_numbers else None,
            final_val_loss=val_losses[-1][0] if val_losses else None,
            final_train_loss=evals[-1].train_loss if evals else None,
            loss_first=float(losses[0]) if len(losses) else None,
            loss_last=float(losses[-1]) if len(losses) else None,
            nan_step=self._iteration(int(nan_rows[0])) if len(nan_rows) else None,
            segments=len(log.segments),
            ended=self.exit_status,
            regimes=[regime.as_dict() for regime in self.regimes],
            regime_total_s=self.stepped_s if log.ledger is None else self.total_s,
            eval_overhead_typical_ms=self.eval_overhead_typical_ms,
            seconds_by_phase=self.seconds_by_phase,
            wander_ms=None if wander is None else list(wander),
            wall_s=log.setup.wall_s,
            stamped_s=self.stamped_s,
            total_s=self.total_s,
            metrics=[dataclasses.asdict(course) for course in log.metric_courses],
            loss_ends=None if loss_ends is None else dataclasses.asdict(loss_ends),
        )

    def _iteration(self, row: int) -> int | None:
        steps = self.log.steps
        return int(steps.iteration[row]) if len(steps) and self.log.has_iteration_numbers else None

    def _eval_steps(self) -> list[int] | None:
        """Where no validation loss is logged, those of metrics of held-out data."""
        log = self.log
        at = [one.iteration for one in log.own_metrics if one.metric.is_eval]
        if log.evals or not at:
            return self._iterations(log.evals, not log.trainer.reads_any_log and log.loss_measures_learning)
        known = {int(one) for one in np.concatenate(at) if one >= 0}
        return sorted(known) if log.has_iteration_numbers and known else None

    def _checkpoint_steps(self) -> list[int] | None:
        """Twice where two were saved, under different names; a resume may save one again."""
        saves = Counter((one.iteration, one.segment) for one in self.log.checkpoints)
        steps = self._iterations(self.log.checkpoints, self.log.trainer.logs_checkpoints)
        more = (at for (at, _), count in saves.items() if at is not None for _ in range(count - 1))
        return steps and sorted([*steps, *more])

    def _iterations(
        self, items: Sequence[LoggedEvaluation | LoggedCheckpoint], has_known_lines: bool
    ) -> list[int] | None:
        """Each once, in order. None where there are items, and the log does not say at which iterations; or
        where there are none, and their lines may be of a form that is not known."""
        iterations = {item.iteration for item in items if item.iteration is not None}
        is_known = bool(iterations) or (not items and has_known_lines)
        return sorted(iterations) if self.log.has_iteration_numbers and is_known else None


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None
