"""What `import glassgpt` offers. Importing it is cheap: torch is loaded when a run begins.

run = glassgpt.train("quickstart", max_iters=100)
run = glassgpt.resume(run.out_dir, max_iters=200)
losses = [record["loss"] for record in glassgpt.read_journal(run.out_dir) if record["kind"] == "step"]
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take longer than all that the command needs to hear Ctrl-C
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from glassgpt.config import TrainConfig
    from glassgpt.record.journal import Record
    from glassgpt.record.sink import Listener
    from glassgpt.training.session import Run


def train(
    config: TrainConfig | str | Path, name: str = "", listeners: Sequence[Listener] = (), **changes: Any
) -> Run:
    """Trains. `config`: the settings, or a preset's name, or a config file; `changes` are settings on top.

    `name`: of the run's folder, if `out_dir` does not say; a preset's own, or "run". `listeners` get every
    record; the journal in the run's folder has them in any case."""
    from glassgpt.track import trackers
    from glassgpt.training import session

    return session.train(config, name, listeners, trackers, **changes)


def resume(out_dir: str | Path, listeners: Sequence[Listener] = (), **changes: Any) -> Run:
    """Resumes a run under its own settings, except for those given, e.g. `max_iters=10_000`."""
    from glassgpt.track import trackers
    from glassgpt.training import session

    return session.resume(out_dir, listeners, trackers, **changes)


def read_journal(run: str | Path) -> list[Record]:
    """The records of a run, of a folder or of its journal.jsonl, without those that a resume superseded."""
    from pathlib import Path

    from glassgpt.record import journal

    path = Path(run)
    return journal.effective_records(journal.read(path / journal.FILE_NAME if path.is_dir() else path))
