"""What a log says about a run as a whole, collected line by line: its settings, sizes and device.

setup = SetupBuilder()
setup.values["parameters"] = 124_000_000
setup.build()       # LoggedSetup
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from glassgpt.config import ConfigValue
from glassgpt.runs.log_numbers import MAX_COUNT
from glassgpt.runs.run_log import LoggedSetup


@dataclass
class SetupBuilder:
    """What the log says about the run as a whole, collected line by line; the latest line counts."""

    settings: dict[str, ConfigValue] = field(default_factory=dict)
    values: dict[str, int | float | str | None] = field(default_factory=dict)  # fields of LoggedSetup
    decayed_parameters: int | None = None  # the optimizer's two groups are printed separately
    undecayed_parameters: int | None = None
    trainable_parameters: int = 0
    frozen_parameters: int = 0
    # At which iteration, how many. Not compared: many processes share one setup.
    tokens_so_far: tuple[int, float] | None = field(default=None, compare=False)

    def count_tokens(self, iteration: int, tokens: float) -> None:
        """Of a trainer that prints how many it has trained on so far: those of an iteration."""
        if not 0 <= tokens < MAX_COUNT:
            return
        if self.tokens_so_far is not None:
            before, tokens_before = self.tokens_so_far
            if iteration > before and tokens > tokens_before:
                self.values["tokens_per_iteration"] = round((tokens - tokens_before) / (iteration - before))
        self.tokens_so_far = iteration, tokens

    def build(self) -> LoggedSetup:
        optimizer_parameters = (self.decayed_parameters or 0) + (self.undecayed_parameters or 0)
        values = {"trained_parameters": optimizer_parameters or None} | self.values
        return LoggedSetup(settings=dict(self.settings), **values)  # type: ignore[arg-type]

    def merged_with(self, later: SetupBuilder) -> SetupBuilder:
        """This one, completed from a later one. A script that runs afterwards prints its own setup, so the
        earlier values win; but epochs are counted on."""
        decayed, undecayed = self.decayed_parameters, self.undecayed_parameters
        epochs = {name: later.values[name] for name in ("epochs",) if name in later.values}
        return SetupBuilder(
            later.settings | self.settings,
            later.values | self.values | epochs,
            later.decayed_parameters if decayed is None else decayed,
            later.undecayed_parameters if undecayed is None else undecayed,
        )

    def copy(self) -> SetupBuilder:
        return replace(self, settings=dict(self.settings), values=dict(self.values))


class FailedLaunch(NamedTuple):
    """A command that failed before its first step: where it began, and what it printed first."""

    first_line: int
    header: str  # without digits
    resumed: bool = False
    setup: LoggedSetup = LoggedSetup()
