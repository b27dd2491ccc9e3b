"""The command `glass`: one thin function per subcommand.

Exit codes: 0 done, 1 a crash, 2 a user error (one line each, with the fix), 3 the loss was not finite,
130 and 143 stopped by Ctrl-C or SIGTERM. `doctor` and `verify` exit with 1 if they found a problem. Only
`train`, `sample`, `look`, `eval`, `tune`, `doctor`, `export` and `import` import torch.
"""

from __future__ import annotations

import codecs
import contextlib
import difflib
import importlib
import io
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassgpt.errors import (
    THREAD_START_FAILURE,
    UserError,
    describe_os_error,
    first_message_line,
    is_out_of_memory,
    is_thread_start_failure,
)
from glassgpt.sanitize import ascii_fallback, sanitize_text
from glassgpt.version import VERSION

if TYPE_CHECKING:
    from glassgpt.cli.command import Command

# The module of each command, imported when it is called: all of them take longer than most answers.
COMMAND_MODULES = {
    "train": "train_command",
    "prepare": "prepare_command",
    "runs": "runs_commands",
    "show": "runs_commands",
    "sample": "model_commands",
    "look": "model_commands",
    "eval": "model_commands",
    "plan": "plan_command",
    "tune": "tune_command",
    "doctor": "check_commands",
    "explain": "explain_commands",
    "watch": "watch_commands",
    "compare": "explain_commands",
    "report": "explain_commands",
    "page": "watch_commands",
    "export": "exchange_commands",
    "import": "exchange_commands",
    "track": "exchange_commands",
    "verify": "check_commands",
    "completion": "completion",
}

HELP = """\
usage: glass COMMAND [options]

Train a small GPT, and see through the run.

commands:
  train [PRESET|FILE]            train; without a preset: quickstart
  sample [RUN]                   generate text with a trained model
  look [RUN]                     what a model has learned, token by token
  eval MODEL TEXT|DATASET ...    loss and bits per byte of a model on any text
  prepare FILE|FOLDER|'PATTERN'  tokenize text, or OWNER/NAME on Hugging Face
  plan [PRESET|FILE]             will it fit, how long will it take, what loss
  tune [PRESET|FILE]             measure which settings train fastest here
  doctor                         check this machine: GPU, torch, disk, speed
  runs [FOLDER]                  list runs: state, loss, speed, size
  show RUN                       print a run's output again
  explain RUN|LOG|-              what happened, what it cost, what to change
  watch LOG | -- COMMAND         watch any trainer learn, live
  compare A B                    what differs, which is faster, better, and why
  report RUN|LOG                 one HTML page about a run
  page [RUN|FOLDER|LOG]          runs and logs in the browser, live
  export RUN                     to Hugging Face, nanoGPT or plain safetensors
  import nanogpt OUT_DIR         import a run of nanoGPT
  track RUN --to=TRACKERS        send a finished run to experiment trackers
  verify RUN|EXPORT|DATASET      compare every file with its recorded SHA-256
  completion bash|zsh|fish       print the TAB completion script of a shell

options:
  -h, --help                     show this help; after a command: its options
  --version                      print the version
"""


def run() -> None:
    """Run the command of sys.argv and exit the process.

    After a stop signal, do not wait for threads that still write: files are committed by rename, so an
    abandoned one leaves nothing. Never wait for a tracker that hangs.
    """
    code = main()
    if code < 128 and not _has_running_tracker():
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _has_running_tracker() -> bool:
    if threading.active_count() == 1:  # nearly always; spares the import
        return False
    from glassgpt.record.sink import has_running_tracker

    return has_running_tracker()


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None or sys.stderr is None:  # started with closed streams, as some schedulers do
        devnull = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        sys.stdout, sys.stderr = sys.stdout or devnull, sys.stderr or devnull
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot encode must not crash a run.
        codecs.register_error("in_ascii", ascii_fallback)
        sys.stdout.reconfigure(errors="in_ascii")
    try:
        return _dispatch(words)
    except UserError as error:
        for problem in error.problems:
            print(f"error: {sanitize_text(problem.replace(chr(10), ' '))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        with contextlib.suppress(OSError):  # the terminal may be gone
            if os.environ.get("RANK", "0") != "0":  # only rank 0 prints
                return int(getattr(error, "exit_code", 130))
            notes = ["saved checkpoints are intact"] if words[:1] == ["train"] else []
            notes += getattr(error, "__notes__", [])  # how to resume, from whatever was stopped
            print("\n" + "; ".join(["stopped at once", *notes]), file=sys.stderr)
        return int(getattr(error, "exit_code", 130))
    except BrokenPipeError:  # `glass runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MemoryError, RuntimeError, ImportError) as error:
        if is_thread_start_failure(error):
            print(f"error: {THREAD_START_FAILURE}", file=sys.stderr)
            return 2
        if not is_out_of_memory(error):
            raise
        fix = "fewer --num_samples, or --device=cpu" if words[:1] == ["sample"] else "end what else uses it"
        print(
            f"error: out of memory ({sanitize_text(first_message_line(error))}): try {fix}", file=sys.stderr
        )
        return 2
    except OSError as error:  # a path, a disk or the system, not a bug
        print(f"error: {sanitize_text(describe_os_error(error))}", file=sys.stderr)
        return 2


def _dispatch(words: list[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # called by the script of `glass completion`
        from glassgpt.cli.completion import complete

        complete()
        return 0
    if not words or words[0] in ("--help", "-h", "help"):
        print(HELP, end="")
        return 0
    if words[0] == "--version":
        print(f"glassgpt {VERSION}")
        return 0
    if words[0] not in COMMAND_MODULES:
        similar = difflib.get_close_matches(words[0], COMMAND_MODULES, n=1)
        hint = f"did you mean glass {similar[0]}?" if similar else f"commands: {', '.join(COMMAND_MODULES)}"
        raise UserError(f"there is no command {words[0]!r}; {hint}")
    return load_command(words[0])(words[1:])


def load_command(name: str) -> Command:
    module = importlib.import_module(f"glassgpt.cli.{COMMAND_MODULES[name]}")
    return getattr(module, "import_" if name == "import" else name)  # type: ignore[no-any-return]
