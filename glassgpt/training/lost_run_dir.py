"""A run folder that is moved, removed or replaced while its run trains.

The run never writes into a folder that may be another run's. It makes a new one, saves there, and ends.
"""

from __future__ import annotations

import contextlib

from glassgpt.data.tokenizers import write_tokenizer
from glassgpt.errors import UserError
from glassgpt.i18n import say, verbatim
from glassgpt.record import journal
from glassgpt.record.finding import finding_record
from glassgpt.record.run_dir import TOKENIZER_DIR, LockedRunDir, resume_command
from glassgpt.training.train_state import TrainSetup, TrainState


def rescue_if_run_dir_lost(run: TrainSetup, state: TrainState) -> bool:
    """Whether the run has lost its folder. Rank 0 checks; the other ranks hear of it as of a signal."""
    run.sink.check_journal(state.progress.iter)
    if run.sink.journal_lost_reason:
        rescue_to_new_dir(run, state)
    return run.sink.has_moved


def rescue_to_new_dir(run: TrainSetup, state: TrainState) -> None:
    """Moves the run's output to a new folder, and asks all ranks to save there and end."""
    if not isinstance(run.run_dir_handle, LockedRunDir) or run.config.eval_only:
        raise UserError(f"{run.run_dir} was moved, removed or replaced: {run.sink.journal_lost_reason}")
    lost_dir, reason = run.run_dir, run.sink.journal_lost_reason
    with run.ledger.phase("checkpoint"):
        with contextlib.suppress(UserError):  # a save that failed because the folder is lost
            run.log(run.saver.poll(wait=True))
        run.run_dir_handle.move_to_rescue_dir()
        run.run_dir_handle.write_config(run.resolved_config())
        write_tokenizer(run.run_dir / TOKENIZER_DIR, run.dataset)
        run.sink.move(run.run_dir / journal.FILE_NAME)
        run.saver.set_run_dir(run.run_dir)
    if not run.process_group.launch_id:  # several ranks do this once they agree: `loop.sync_stop_request`
        state.last_saved = None
    state.signals.report_run_dir_lost()
    run.log(
        finding_record(
            state.progress.iter,
            "folder-lost",
            "warning",
            title=say("folder-lost.title", lost_dir=str(lost_dir), run_dir=str(run.run_dir)),
            evidence=verbatim(reason),
            explanation=say("folder-lost.explanation"),
            advice=say("folder-lost.advice", command=resume_command(run.run_dir)),
        )
    )
