"""A run folder that is moved, removed or replaced while its run trains.

The run never writes into a folder that may be another run's. It makes a new one, saves there, and ends.
"""

from __future__ import annotations

import contextlib

from glassgpt.data.tokenizers import write_tokenizer
from glassgpt.errors import UserError
from glassgpt.record import journal
from glassgpt.record.finding import finding_record
from glassgpt.record.run_dir import TOKENIZER_DIR, LockedRunDir, resume_command
from glassgpt.training.job import Job


def rescue_if_run_dir_lost(job: Job) -> bool:
    """Whether the run has lost its folder. Rank 0 checks; the other ranks hear of it as of a signal."""
    job.sink.check_journal(job.progress.iter)
    if job.sink.journal_lost_reason:
        rescue_to_new_dir(job)
    return job.sink.has_moved


def rescue_to_new_dir(job: Job) -> None:
    """Moves the run's output to a new folder, and asks all ranks to save there and end."""
    if not isinstance(job.run_dir_handle, LockedRunDir) or job.config.eval_only:
        raise UserError(f"{job.run_dir} was moved, removed or replaced: {job.sink.journal_lost_reason}")
    lost_dir, reason = job.run_dir, job.sink.journal_lost_reason
    with job.ledger.phase("checkpoint"):
        with contextlib.suppress(UserError):  # a save that failed because the folder is lost
            job.log(job.saver.poll(wait=True))
        job.run_dir_handle.move_to_rescue_dir()
        job.run_dir_handle.write_config(job.resolved_config())
        write_tokenizer(job.run_dir / TOKENIZER_DIR, job.dataset)
        job.sink.move(job.run_dir / journal.FILE_NAME)
        job.saver.set_run_dir(job.run_dir)
    if not job.process_group.launch_id:  # several ranks do this once they agree: `loop.sync_stop_request`
        job.last_saved = None
    job.signals.report_run_dir_lost()
    job.log(
        finding_record(
            job.progress.iter,
            "folder-lost",
            "warning",
            f"{lost_dir} was moved, removed or replaced; the run ends with a checkpoint in {job.run_dir}",
            evidence=reason,
            explanation="A run writes only where its own journal is. The lost folder is left as it is.",
            advice=f"resume with  {resume_command(job.run_dir)}",
        )
    )
