"""What has to be known about a trainer to read its lines right, and to advise on its runs.

One file per trainer in `trainers/` holds its grammar and ends with these traits. The rest of the program
asks for a trait, never for a name. The defaults are what is assumed of a trainer that nobody has described.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassgpt.runs.builder import RunBuilder
    from glassgpt.runs.facts import Facts
    from glassgpt.runs.glossary import GlossaryEntry, LastLine
    from glassgpt.runs.run_log import RunLog

Reader = Callable[[str, "RunBuilder"], bool]  # takes what a line says; True if it is about an iteration
Sentence = Callable[[], str]  # says it in the reader's language, which is known only when it is asked for
Glossary = Callable[["LastLine", "RunLog", "Facts"], list["GlossaryEntry"]]

A100_PEAK = 312e12  # FLOP/s in bfloat16, dense


@dataclass(frozen=True)
class Trainer:
    id: str  # as in the JSON
    name: str  # as people write it

    # --- its log ---
    reader: Callable[[], Reader] | None = None  # makes a reader of its lines; None: its log is no text
    introduction: re.Pattern[str] | None = None  # only it prints this before the first iteration, or failing
    reads_any_log: bool = False  # stands for every trainer without a file of its own
    article: str = "A"  # before its name, in English
    command: str = ""  # a program that starts it, at a shell's prompt
    setting_names: Mapping[str, str] = field(default_factory=dict)  # its words for settings -> those of Setup
    glossary: Glossary | None = None  # what each piece of its lines means; None: iteration and loss only

    # --- its iterations ---
    first_iteration: int = 1  # the number of a run's first line
    steps_are_micro_batches: bool = False  # not every iteration is an update
    lines_count_updates: bool = False  # a line's number is the updates done so far, others' that of this one
    step_work_grows: bool = False  # longer contexts or larger batches by schedule: later steps are slower
    one_run_per_log: bool = False  # a new process in it goes on with the same run
    loop_includes_max_iters: bool = False  # max_iters=1000: the last iteration is number 1000

    # --- its times ---
    step_time_includes_eval: bool = False  # of the evaluation and the save made in that iteration
    eval_timed_in_later_step: int = 0  # so many iterations after an evaluation's is the one that includes it
    step_time_is_interval_mean: bool = False  # over the iterations since the line before
    clock_reads_before_sync: bool = False  # on a GPU only logged iterations wait for the work to be done
    tokens_per_s_is_of_step: bool = False  # of the same iteration, not a running average
    uses_torch: bool = True
    compile_off_flag: str = ""  # turns torch.compile off

    # --- its MFU and its model ---
    mfu_peak: float | None = None  # the FLOP/s that it calls 100 %, where that is fixed
    mfu_is_running_average: bool = False  # 0.9 of the last one, 0.1 of this iteration
    mfu_counts_palm_flops: bool = False  # 6N + 12 x layers x width x context per token, N without positions
    is_gpt2_shaped: bool = False  # width, depth and vocabulary give the parameters
    states_exact_parameters: bool = False  # not rounded, and without positions
    keeps_float32_masters: bool = False  # weights and AdamW's moments are 32-bit throughout

    # --- its losses ---
    loss_is_interval_mean: bool = False  # over the iterations since the line before
    evaluates_next_token_loss: bool = False  # its loss is the cross-entropy of the next token, and only that
    trains_on_plain_text: bool = False  # others may be tuned to anything
    often_finetunes: bool = False  # starts from trained weights, and does not say so

    # --- its evaluations ---
    evaluates_before_first_step: bool = False  # inside the first iteration, whether or not the log shows it
    evaluates_random_batches: bool = False  # fresh ones each time
    evaluates_same_tokens: bool = False  # each time
    eval_splits: int | None = None  # 2: train and val, 1: val alone; None: not known
    eval_line_is_common: bool = False  # other loops print it too, so it does not show that this one ran
    ends_on_regular_eval: bool = False  # a finished run's last iteration is one of the usual evaluations
    final_eval_offsets: tuple[int, ...] = ()  # of its closing evaluation, from the last step's number
    eval_time_cause: Sentence | None = None  # what more than an evaluation is in the time
    rarer_eval_advice: Callable[[int, int, str], str] | None = None  # old and new interval, share of the run

    # --- its settings ---
    takes_known_settings: bool = False  # under the names of Setup.settings, so advice can name them
    settings_give_batch_tokens: bool = False  # batch_size x block_size x gradient_accumulation_steps
    schedule_fits_run: bool = False  # warm-up and decay follow max_iters where they are not set
    defaults: Mapping[str, float] = field(default_factory=dict)  # of settings that its log need not show

    # --- its checkpoints ---
    shows_saves: bool = False  # each has a line; others save silently, so that no line means nothing
    saves_only_after_eval: bool = False
    overwrites_checkpoint: bool = False  # keeps one file, unless always_save_checkpoint=False the latest
    resume_command: str = ""
    cannot_resume_advice: Sentence | None = None
    restarts_data_on_resume: bool = False  # a resumed process draws the batches of a fresh one
    data_restart_cause: Sentence | None = None
    data_restart_advice: Callable[[str], str] | None = None  # the share of iterations that saw nothing new
