"""What a trainer's file declares: how to read its log, and the traits that explanations and advice depend on.

One file per trainer in `trainers/` holds its patterns and its reader, and ends with `TRAINER = Trainer(...)`.
The rest of the program asks for a trait, never for a name. The defaults are those of an unknown trainer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glassgpt.i18n import Message, say

if TYPE_CHECKING:
    from glassgpt.runs.builder import RunBuilder

# Reads one line into the builder. True if the line is a step or an evaluation that only this trainer prints
# so. A reader that holds lines back has a method `close(builder)`, which is called at the end of the log. One
# that learns the form of its lines has it as `form`, and `add_steps(columns, builder)`: see step_form.py.
Reader = Callable[[str, "RunBuilder"], bool]
DocumentReader = Callable[[Mapping[str, object], "RunBuilder"], None]
# A line that is printed before the first step, and what it says about the run:
# - a part of every such line: a plain search for it is fast, and most lines do not have it;
# - its pattern;
# - the field of LoggedSetup or SetupBuilder, or the setting, whose value is the last group. Without a group:
#   "" a process starts here, "resumed" one that resumes, "compile" the model is compiled.
HeaderLine = tuple[str, str, str]
# A part of a line: a column of Steps, "eval" for the last evaluation, "checkpoint" for a save, or "" for a
# text that is shown as it is; how the log prints it; its meaning.
GlossaryPart = tuple[str, str, Message]

A100_PEAK = 312e12  # FLOP/s in bfloat16, dense


@dataclass(frozen=True)
class Trainer:
    id: str  # as in the JSON
    name: str  # as people write it

    # --- its log ---
    reader: Reader | type | None = None  # or the class of one that remembers lines; None: it writes no lines
    plain_step: str = ""  # its usual step, a whole line: the pattern of a StepForm
    identifying_line: re.Pattern[str] | None = None  # only this trainer prints it, before its first step
    header: tuple[HeaderLine, ...] = ()  # the lines before its first step that say something
    reads_any_log: bool = False  # the fallback for trainers without a file
    article: str = "A"  # before its name, in English
    command: str = ""  # a program that starts it, at a shell's prompt
    setting_names: Mapping[str, str] = field(default_factory=dict)  # its names of settings -> TrainConfig's
    glossary: tuple[GlossaryPart, ...] = (  # what each part of its lines means
        ("iteration", "{}", say("glossary.named_iteration")),
        ("loss", "loss {:.4f}", say("glossary.named_loss")),
    )

    # --- its tables of metrics: CSV, JSON, TensorBoard's event files; see metric_table.py ---
    table_columns: tuple[frozenset[str], ...] = ()  # a table that has all of one set is this trainer's
    rows_key: str = ""  # of the array of rows in its JSON document
    document_reader: DocumentReader | None = None  # of what else that document says
    event_texts: Mapping[str, DocumentReader] = field(default_factory=dict)  # by tag: of texts that are JSON
    column_roles: Mapping[str, str] = field(default_factory=dict)  # its own meaning of a column -> the role
    closing_row_has_no_loss: bool = False  # the last row of a finished run, and only that one

    # --- its iterations ---
    first_iteration: int = 1  # the number of a run's first line
    iterations_are_epochs: bool = False  # of a table that counts nothing else
    steps_are_micro_batches: bool = False  # not every iteration is an update
    lines_name_plan: bool = False  # each line has how many are planned (step 60/9408), which tells runs apart
    lines_count_updates: bool = False  # line N: N updates are done; else: line N is update N itself
    step_work_grows: bool = False  # longer contexts or larger batches by schedule: later steps are slower
    loop_includes_max_iters: bool = False  # max_iters=1000: the last iteration is number 1000

    # --- its times ---
    step_time_includes_eval: bool = False  # and the save, made in that iteration
    eval_timed_in_later_step: int = 0  # the step this many iterations after an evaluation includes it
    step_time_is_interval_mean: bool = False  # over the iterations since the previous line
    clock_reads_before_sync: bool = False  # on a GPU, only logged iterations wait for the kernels to finish
    tokens_per_s_is_of_step: bool = False  # of the same iteration, not a running average
    uses_torch: bool = True
    compile_off_flag: str = ""  # turns torch.compile off

    # --- its MFU and its model ---
    mfu_peak: float | None = None  # the FLOP/s that it calls 100 %, where that is fixed
    mfu_peak_card: str = ""  # whose peak that is
    mfu_is_running_average: bool = False  # 0.9 of the previous value, 0.1 of this iteration
    mfu_counts_replica: bool = False  # of one data-parallel replica, also where several devices share it
    mfu_counts_palm_flops: bool = False  # 6N + 12 x layers x width x context per token, N without positions
    is_gpt2_shaped: bool = False  # width, depth and vocabulary give the parameters
    states_exact_parameters: bool = False  # not rounded, and without positions
    keeps_float32_masters: bool = False  # weights and AdamW's moments are 32-bit throughout
    computes_loss_in_chunks: bool = False  # never has the logits of all tokens at once

    # --- its losses ---
    loss_measures_learning: bool = True  # not in reinforcement learning: it may rise while rewards do
    loss_is_interval_mean: bool = False  # over the iterations since the previous line
    loss_base: float | None = math.e  # of the logarithm in it, per token; None: not a cross-entropy per token
    zero_loss_cause: Message | None = None  # why it logs a NaN or infinite loss as 0
    evaluates_next_token_loss: bool = False  # its loss is the cross-entropy of the next token, and only that
    trains_on_plain_text: bool = False  # others may be tuned to anything
    often_finetunes: bool = False  # starts from trained weights, and does not print so

    # --- its evaluations ---
    evaluates_before_first_step: bool = False  # inside the first iteration, whether or not the log shows it
    evaluates_random_batches: bool = False  # fresh ones each time
    evaluates_same_tokens: bool = False  # each time
    eval_line: str = ""  # what its line of an evaluation looks like, for advice to find one
    eval_splits: int | None = None  # 2: train and val, 1: val alone; None: not known
    eval_line_is_common: bool = False  # other loops print it too, so it does not identify this trainer
    ends_on_regular_eval: bool = False  # a finished run's last iteration is one of the usual evaluations
    final_eval_offsets: tuple[int, ...] = ()  # of its closing evaluation, from the last step's number
    eval_time_cause: Message | None = None  # what else than an evaluation is in that time
    rarer_eval_advice: Message | None = None  # gets the two intervals and the saving

    # --- its settings ---
    clips_gradients: bool = False  # unless told otherwise
    takes_known_settings: bool = False  # under TrainConfig's names, so advice can name them
    lr_is_share_of_peak: bool = False  # the logged one: a factor, 1 at its highest
    schedule_fits_run: bool = False  # warm-up and decay follow max_iters where they are not set
    default_dtype: str = ""  # of a run whose log names none; empty: not known
    defaults: Mapping[str, float] = field(default_factory=dict)  # of settings that its log need not show

    # --- its checkpoints ---
    logs_checkpoints: bool = False  # each has a line; in other trainers' logs, no such line proves nothing
    has_saves_around_it: bool = False  # scripts save with lines of their own
    saves_only_after_eval: bool = False  # but not after one before the first update
    overwrites_checkpoint: bool = False  # one file: the latest, or the best with always_save_checkpoint=False
    resume_command: str = ""
    cannot_resume_advice: Message | None = None
    resumed_log_note: Message | None = None  # on a log that begins with a resume
    restarts_data_on_resume: bool = False  # a resumed process draws the batches of a fresh one
    data_restart_cause: Message | None = None
    data_restart_advice: Message | None = None  # how a resumed process goes on with new ones

    def make_reader(self) -> Reader:
        """For one log."""
        if self.reader is None:
            raise ValueError(f"{self.name} writes no lines")
        reader: Reader = self.reader() if isinstance(self.reader, type) else self.reader
        return reader
