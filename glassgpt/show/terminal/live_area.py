"""What stands below the lines of a run on a terminal: a small loss curve, and one line that moves.

    1,250/5,000 ███████░░░░░░░░░░░░░░░░░░  25%  loss 1.7312  19.4k tok/s  3m 07s to go  training

Records say how fast a run is and what evaluations and saves cost. Between two of them `tick` is
called every second with what the loop is doing and how many updates are done. Nothing here reaches the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from glassgpt.data.ladder import ladder_from_rows
from glassgpt.estimate.step_timing import RunningMean, eta_s, remaining_work
from glassgpt.format import format_count, format_loss
from glassgpt.i18n import translate
from glassgpt.record.journal import Record
from glassgpt.show.terminal.charts import bar, ladder_levels, loss_chart
from glassgpt.show.terminal.text_lines import terminal_text

_MIN_BAR, _MAX_BAR = 6, 40
_CHART_HEIGHT = 5
_MIN_TERMINAL_HEIGHT = 20  # lines; below, the curve would leave too few for the log
_MAX_POINTS = 2000  # of the training loss that are kept
_MIN_REFRESH_S = 0.25
_MIN_SHOWN_WAIT_S = 3.0  # in one activity, before its duration is shown
_MIN_DATA_WAIT_S = 1.0  # at one update, before waiting for data is called so


class LiveArea:
    """`clock`: seconds that never go back."""

    def __init__(self, out: Console, run: Record, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._run, self._clock = out, run, clock
        self._live: Live | None = None
        self._training: list[tuple[float, float]] = []
        self._validation: list[tuple[float, float]] = []
        self._chart: list[Text] = []
        self._loss: float | None = None
        self._tokens_per_s: float | None = None
        self._step_s: float | None = None
        self._eval_cost, self._save_cost = RunningMean(), RunningMean()
        self._closing_eval = 0.0
        self._train_eval_ms = 0.0
        self._evaluated_at: int | None = None
        # Updates done, and when: used until a step record comes.
        self._first_timed: tuple[int, float] | None = None
        self._activity, self.done = "startup", int(run["iter"])
        self._drawn_at = -_MIN_REFRESH_S
        self._last_update_at = 0.0
        self._since = clock()  # of this activity at this update

    # --- what happens ---

    def start(self) -> None:
        self._live = Live(get_renderable=self._render, console=self._out, auto_refresh=False, transient=True)
        self._live.start()

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def tick(self, activity: str, done: int) -> None:
        """About once a second, between records."""
        self._move_to(activity, done)
        self.refresh()

    def refresh(self) -> None:
        """Draws it anew; at most some times a second, however fast records come."""
        now = self._clock()
        if self._live is not None and now - self._drawn_at >= _MIN_REFRESH_S:
            self._drawn_at = now
            self._live.refresh()

    def update(self, record: Record) -> None:
        """A step, evaluation or checkpoint, before its line is printed."""
        match record["kind"]:
            case "step":
                loss: float = record["loss"]
                self._loss = loss
                if record["step_ms"] is not None:
                    self._step_s, self._tokens_per_s = record["step_ms"] / 1000, record["tokens_per_s"]
                self._training.append((record["iter"], record.get("loss_mean", loss)))
                if len(self._training) > _MAX_POINTS:
                    del self._training[::2]
                self._move_to("train", record["iter"])
            case "eval" if record["split"] == "train":
                self._train_eval_ms = record["ms"] or 0.0
            case "eval" if not record["closing"]:
                self._eval_cost.add((self._train_eval_ms + (record["ms"] or 0.0)) / 1000)
                self._validation.append((record["iter"], record["loss"]))
                self._evaluated_at = record["iter"]
                if self._run["config"].get("closing_eval") and not record["whole_split"]:
                    val_tokens = self._run["data"].get("tokens", {}).get("val", 0)
                    self._closing_eval = val_tokens / (2 * record["tokens"])
                self._chart = self.chart()
                self._move_to("train", record["iter"])
            case "checkpoint":
                self._save_cost.add(record["blocking_ms"] / 1000)

    def _move_to(self, activity: str, done: int) -> None:
        now = self._clock()
        if done != self.done:
            self._last_update_at = now
        if (activity, done) != (self._activity, self.done):
            self._activity, self.done, self._since = activity, done, now
        if self._first_timed is None and done > self._run["iter"]:
            self._first_timed = done, now  # the update before it, the first one, includes compiling

    # --- what is shown ---

    def chart(self) -> list[Text]:
        """The loss curve so far; empty until there are two evaluations."""
        if len(self._validation) < 2:
            return []
        levels = ladder_levels(ladder_from_rows(self._run["data"].get("ladder")))
        return loss_chart(self._training, self._validation, self._out.width, _CHART_HEIGHT, levels=levels)

    @property
    def step_s(self) -> float | None:
        """By the last step record; before the first one, by the updates that were counted."""
        if self._step_s is not None or self._first_timed is None:
            return self._step_s
        updates, seconds = self.done - self._first_timed[0], self._last_update_at - self._first_timed[1]
        return seconds / updates if updates else None

    @property
    def eta_s(self) -> float | None:
        """Until the end, evaluations and saves included, as step records have it; and between two of them
        less by what was spent since on the present update, evaluation or save."""
        config, step_s = self._run["config"], self.step_s
        work = remaining_work(
            self.done,
            config["max_iters"],
            config["eval_interval"],
            config.get("checkpoint_interval"),
            is_evaluated=self._evaluated_at == self.done,
            closing_eval=self._closing_eval,
        )
        eval_s, save_s = self._eval_cost.value, self._save_cost.value
        seconds = eta_s(work, step_s, eval_s, save_s)
        if seconds is None or step_s is None:
            return None
        cost_s = {"eval": eval_s, "checkpoint": save_s}.get(self._activity, step_s)
        return max(0.0, seconds - min(cost_s, self._clock() - self._since))

    def line(self, width: int) -> Text:
        """At most `width` cells: without the values of the highest ranks where there is no room for all."""
        max_iters = self._run["config"]["max_iters"]
        share = min(1.0, self.done / max_iters) if max_iters else 1.0
        head = f"{self.done:,}/{max_iters:,} "
        parts = [(f"{share:.0%}", 2)]
        if self._loss is not None:
            parts.append((f"loss {format_loss(self._loss)}", 0))
        if self._tokens_per_s is not None:
            parts.append((f"{format_count(self._tokens_per_s)} tok/s", 3))
        eta = self.eta_s
        if eta is not None and self.done < max_iters:
            parts.append((translate("run_console.to_go", seconds=eta), 1))
        parts.append((self._describe_activity(), 1))
        while True:
            tail = "  ".join(text for text, _ in parts)
            room = width - cell_len(head) - cell_len(tail) - 2
            if room >= _MIN_BAR or len(parts) == 1:
                break
            parts.remove(max(parts, key=lambda part: part[1]))
        cells = max(0, min(_MAX_BAR, room))
        filled = bar(share, cells)
        return Text.assemble(
            (head, "bold"), (filled, "cyan"), ("░" * (cells - len(filled)), "dim"), f"  {terminal_text(tail)}"
        )

    def _describe_activity(self) -> str:
        """In a word, and for how long if it takes long."""
        waited_s = self._clock() - self._since
        chosen = {str(choice["name"]): choice["value"] for choice in self._run["choices"]}
        compiles = chosen.get("compile") == "on" or chosen.get("kernels") == "triton"
        training = translate("run_console.activity.training")
        if self._activity == "data" and waited_s >= _MIN_DATA_WAIT_S:
            word = translate("run_console.activity.waiting_for_data")
        else:
            words = {
                "startup": translate("run_console.activity.starting"),
                "compile": translate("run_console.activity.compiling")
                if compiles
                else translate("run_console.activity.warming_up"),
                "eval": translate("run_console.activity.evaluating"),
                "sample": translate("run_console.activity.sampling"),
                "checkpoint": translate("run_console.activity.saving"),
            }
            word = words.get(self._activity, training)
        if word == training or waited_s < _MIN_SHOWN_WAIT_S:
            return word
        return translate("run_console.activity.since", activity=word, seconds=waited_s)

    def _render(self) -> Group:
        chart = self._chart if self._out.size.height >= _MIN_TERMINAL_HEIGHT else []
        # A line of the full width would make some terminals begin another one.
        return Group(*chart, self.line(self._out.width - 1))
