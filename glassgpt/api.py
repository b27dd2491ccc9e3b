"""The Python API: what `import glassgpt` offers. Importing it is cheap: torch is loaded when a run starts.

run = glassgpt.train("quickstart", max_iters=100)
run = glassgpt.resume(run.out_dir, max_iters=200)
losses = [record["loss"] for record in glassgpt.read_journal(run.out_dir) if record["kind"] == "step"]
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing, whose import would delay the handling of Ctrl-C
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
    """Trains. `config`: the settings, a preset's name, or a config file. `changes`: settings on top.

    `name`: of the run's folder if `out_dir` is not set; by default the preset's name, or "run". `listeners`
    are called with every record; the journal in the run's folder has them in any case."""
    from glassgpt.track import trackers
    from glassgpt.training import session

    return session.train(config, name, listeners, trackers, **changes)


def resume(out_dir: str | Path, listeners: Sequence[Listener] = (), **changes: Any) -> Run:
    """Resumes a run with its own settings and the `changes`, e.g. `max_iters=10_000`."""
    from glassgpt.track import trackers
    from glassgpt.training import session

    return session.resume(out_dir, listeners, trackers, **changes)


def read_journal(run: str | Path) -> list[Record]:
    """The records of a run, given its folder or its journal.jsonl, without those that a resume superseded."""
    from pathlib import Path

    from glassgpt.record import journal

    path = Path(run)
    return journal.effective_records(journal.read(path / journal.FILE_NAME if path.is_dir() else path))
