"""Runs any program, passes its output through byte for byte, and saves it: `glass watch -- COMMAND`.

    log = OutputLog(report)
    exit_code = run_command(["python", "train.py"], log, report)

The program should not notice that it is watched:

- Where our stdout is a terminal, it gets a pseudo-terminal of the same size and settings. Ours is in raw mode
  meanwhile, so that keys, Ctrl-C included, are typed through to the program.
- Otherwise stdout and stderr are two pipes, or one where both go to the same place, which keeps their order.
- It reads our stdin itself, unless that is the terminal.
- Signals to us are passed on, once: `_GroupWitness`.
- When our reader is gone (`| head`), the program's pipe is closed too.

Linux and macOS only. No torch, no numpy: a thread of theirs could take a signal that is waited for here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import termios
import threading
import time
import tty
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from glassgpt.record.output_log import OutputLog, write_all

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FORWARDED_SIGNALS = {
    *_STOP_SIGNALS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT
}  # fmt: skip
_WAITED_SIGNALS = {*_FORWARDED_SIGNALS, signal.SIGCHLD, signal.SIGWINCH}
_CHUNK_BYTES = 1 << 16
# A process that the program has left behind may keep its output open for ever. Wait for its last lines:
_QUIET_S = 0.3  # this long after the program's end, and after each of them,
_MAX_DRAIN_S = 2.0  # but no longer than this.
_WITNESS_S = 0.25  # until the witness must have had a signal that was sent to the whole group
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # the exit codes of shells


class CannotStart(Exception):
    """The command cannot be started; `exit_code` is the one that a shell would have."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def check_command(name: str) -> None:
    """Raises CannotStart if there is no such program."""
    if shutil.which(name) is not None:
        return
    if os.sep not in name:
        hint = f"; for a shell's command line: glass watch -- sh -c '{name}'" if " " in name else ""
        raise CannotStart(f"{name}: command not found{hint}", _NOT_FOUND)
    if not os.path.exists(name):
        raise CannotStart(f"{name}: {os.strerror(errno.ENOENT)}", _NOT_FOUND)
    reason = errno.EISDIR if os.path.isdir(name) else errno.EACCES
    raise CannotStart(f"{name}: {os.strerror(reason)}", _NOT_EXECUTABLE)


def run_command(command: Sequence[str], log: OutputLog, report: Callable[[str], None]) -> int:
    """The command's exit code; 128 + n if signal n ended it. CannotStart if it never ran."""
    with ExitStack() as closing:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_SIGNALS)
        closing.callback(_unblock_signals, mask)
        witness = closing.enter_context(_GroupWitness())
        terminal = closing.enter_context(_Terminal()) if os.isatty(1) else None
        process, sources = _start(command, terminal, mask)
        ended_reader, ended_writer = os.pipe()  # its writer is closed at the program's end
        closing.callback(os.close, ended_reader)
        pumps = [_Pump(source, target, log, ended_reader, report) for target, source in sources.items()]
        for pump in pumps:
            pump.start()
        if terminal is not None:
            terminal.enter_raw_mode()
            threading.Thread(target=terminal.forward_keyboard, args=[ended_reader], daemon=True).start()
        has_ended = False
        while not has_ended or not all(pump.is_done for pump in pumps):
            number = signal.sigwait(_WAITED_SIGNALS)
            if not has_ended and process.poll() is not None:
                has_ended = True
                os.close(ended_writer)
            if has_ended:
                if number in _STOP_SIGNALS:  # what is left is for a reader that does not read
                    break
            elif number == signal.SIGWINCH and terminal is not None:
                terminal.copy_size()
            elif number in _FORWARDED_SIGNALS:
                _forward(signal.Signals(number), process.pid, terminal, witness)
        code = process.returncode
        return 128 - code if code < 0 else code


def _start(
    command: Sequence[str], terminal: _Terminal | None, mask: set[int]
) -> tuple[subprocess.Popen[bytes], dict[int, int]]:
    """The started program, and where to read what goes to our descriptors 1 and 2."""
    sources: dict[int, int] = {}
    ends: dict[int, int] = {}  # the program's, by descriptor
    environment = dict(os.environ)
    if terminal is not None:
        sources[1] = os.dup(terminal.master)
        ends = {number: terminal.slave for number in (0, 1, 2) if os.isatty(number)}
    for number in (1, 2):
        if number == 2 and 2 not in ends and terminal is None and _is_same_file(1, 2):
            ends[2] = ends[1]
        elif number not in ends:
            sources[number], ends[number] = os.pipe()
            environment.setdefault("PYTHONUNBUFFERED", "1")  # into a pipe, Python would print late

    def prepare() -> None:
        if terminal is not None:
            fcntl.ioctl(terminal.slave, termios.TIOCSCTTY, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def start(words: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            stdin=ends.get(0),
            stdout=ends[1],
            stderr=ends[2],
            env=environment,
            close_fds=False,  # ours are not inherited; those that we were given are
            start_new_session=terminal is not None,
            preexec_fn=prepare,  # there is no thread yet
        )

    try:
        try:
            process = start(command)
        except OSError as error:
            path = shutil.which(command[0])
            # A shell script without its first line `#!/bin/sh` is executed by every shell nevertheless.
            if error.errno != errno.ENOEXEC or path is None or b"\0" in _first_bytes(path):
                raise
            process = start(["/bin/sh", path, *command[1:]])
    except OSError as error:
        # Not found after all: the interpreter that a script names.
        raise CannotStart(f"{command[0]}: {error.strerror}", _NOT_EXECUTABLE) from None
    finally:
        for end in set(ends.values()):
            os.close(end)
    return process, sources


def _is_same_file(first: int, second: int) -> bool:
    try:
        return os.path.samestat(os.fstat(first), os.fstat(second))
    except OSError:  # one of them is closed
        return False


def _first_bytes(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(80)


# --- signals ---


def _unblock_signals(mask: set[int]) -> None:
    """Drops signals that came after the program's end."""
    while signal.sigpending() & _WAITED_SIGNALS:
        signal.sigwait(_WAITED_SIGNALS)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _forward(number: signal.Signals, pid: int, terminal: _Terminal | None, witness: _GroupWitness) -> None:
    to_group = witness.has_received(number)
    # The kernel never stops the group of a session's leader: nobody could continue it.
    may_stop = os.getpgrp() != os.getsid(0)
    with contextlib.suppress(ProcessLookupError):
        if terminal is None:
            if not to_group:  # the program is in our group
                os.kill(pid, number)
        elif number == signal.SIGTSTP:
            if may_stop:  # SIGSTOP: the program leads a session, where SIGTSTP would be discarded
                os.killpg(pid, signal.SIGSTOP)
        elif to_group or number == signal.SIGCONT:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    if number == signal.SIGTSTP and may_stop:
        if terminal is not None:
            terminal.leave_raw_mode()
        os.kill(os.getpid(), signal.SIGSTOP)
    elif number == signal.SIGCONT and terminal is not None:
        terminal.enter_raw_mode()
        terminal.copy_size()


class _GroupWitness:
    """Tells whether a signal was sent to us alone, or to our whole process group.

    The group's signals (Ctrl-C, `kill %1`, `timeout`, a scheduler) reach the program by themselves. One that
    is passed on too would arrive twice, and for many trainers a second Ctrl-C means: end without saving. A
    process cannot see how a signal was sent. So a second process of the group does nothing but note its own.
    """

    def __enter__(self) -> _GroupWitness:
        self._received = b""
        self._report, report_writer = os.pipe()
        lifeline_reader, self._lifeline = os.pipe()  # closed when we end, however we end
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._serve(report_writer, lifeline_reader)
            finally:
                os._exit(0)
        os.close(report_writer)
        os.close(lifeline_reader)
        return self

    def _serve(self, report_writer: int, lifeline_reader: int) -> None:
        os.close(self._lifeline)
        devnull = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):  # our reader must see the end of our output when we end
            os.dup2(devnull, number)

        def ignore(number: int, frame: FrameType | None) -> None: ...

        for signal_number in _FORWARDED_SIGNALS:
            signal.signal(signal_number, ignore)
        os.set_blocking(report_writer, False)
        signal.set_wakeup_fd(report_writer, warn_on_full_buffer=False)  # writes each signal's number
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED_SIGNALS)
        os.read(lifeline_reader, 1)

    def has_received(self, number: int) -> bool:
        deadline = time.monotonic() + _WITNESS_S
        while number not in self._received:
            timeout_s = max(0.0, deadline - time.monotonic())
            if not select.select([self._report], [], [], timeout_s)[0]:
                return False
            if not (received := os.read(self._report, 64)):  # somebody has killed it
                return False
            self._received += received
        self._received = self._received.replace(bytes([number]), b"")
        return True

    def __exit__(self, *_: object) -> None:
        os.close(self._lifeline)
        os.waitpid(self._pid, 0)
        os.close(self._report)


# --- output ---


class _Pump(threading.Thread):
    """Copies what the program writes to our descriptor `target` and to the log, as it comes.

    Wakes the main thread when it is done, by SIGCHLD.
    """

    def __init__(
        self, source: int, target: int, log: OutputLog, ended: int, report: Callable[[str], None]
    ) -> None:
        super().__init__(daemon=True)
        self._source, self._target, self._log, self._ended = source, target, log, ended
        self._report = report
        self.is_done = False

    def run(self) -> None:
        try:
            self._copy()
        finally:
            os.close(self._source)
            self.is_done = True
            os.kill(os.getpid(), signal.SIGCHLD)

    def _copy(self) -> None:
        to_terminal = os.isatty(self._target)
        has_target, deadline, owed_bytes = True, None, 0
        while True:
            if deadline is None:
                ready = select.select([self._source, self._ended], [], [])[0]
                if self._ended in ready:
                    deadline = time.monotonic() + _MAX_DRAIN_S
                    owed_bytes = _readable_bytes(self._source)
                if self._source not in ready:
                    continue
            elif owed_bytes <= 0 and (
                time.monotonic() > deadline or not select.select([self._source], [], [], _QUIET_S)[0]
            ):
                return
            try:
                chunk = os.read(self._source, _CHUNK_BYTES)
            except OSError as error:
                if error.errno != errno.EIO:  # EIO: nobody has the pseudo-terminal open any more
                    raise
                return
            if not chunk:
                return
            owed_bytes -= len(chunk)
            try:
                if has_target:
                    write_all(self._target, chunk)
            except OSError as error:
                has_target = False
                if error.errno not in (errno.EPIPE, errno.EIO):
                    self._report(f"descriptor {self._target}: {error.strerror}")
                if not to_terminal:  # the program's next write fails, as it would have without us
                    self._log.write(chunk)
                    return
            self._log.write(chunk)


def _readable_bytes(descriptor: int) -> int:
    buffer = bytearray(4)
    fcntl.ioctl(descriptor, termios.FIONREAD, buffer)
    return int(struct.unpack("i", buffer)[0])


# --- the terminal ---


class _Terminal:
    """The program's pseudo-terminal, and the real one, in raw mode while we are in the foreground."""

    def __enter__(self) -> _Terminal:
        self.master, self.slave = os.openpty()
        self._has_keyboard = os.isatty(0)
        settings = termios.tcgetattr(1)
        if not self._has_keyboard:
            # The real terminal stays as it is and turns \n into \r\n; once is enough.
            settings[1] &= ~termios.OPOST
        termios.tcsetattr(self.slave, termios.TCSANOW, settings)
        self.copy_size()
        self._saved_settings: list[object] | None = None  # of the real one, while it is in raw mode
        return self

    def __exit__(self, *_: object) -> None:
        self.leave_raw_mode()
        os.close(self.master)

    def copy_size(self) -> None:
        with contextlib.suppress(OSError):  # the real terminal is gone
            size = fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)  # the kernel tells the program

    def enter_raw_mode(self) -> None:
        if not self._has_keyboard or self._saved_settings is not None:
            return
        with contextlib.suppress(OSError, termios.error):
            if os.tcgetpgrp(0) == os.getpgrp():  # else another program has the terminal
                saved = termios.tcgetattr(0)
                tty.setraw(0, termios.TCSADRAIN)
                self._saved_settings = saved

    def leave_raw_mode(self) -> None:
        if self._saved_settings is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(0, termios.TCSADRAIN, self._saved_settings)  # type: ignore[arg-type]
            self._saved_settings = None

    def forward_keyboard(self, ended: int) -> None:
        while self._has_keyboard:
            if ended in select.select([0, ended], [], [])[0]:
                return
            if self._saved_settings is None:  # in the background: the keys are not for us
                time.sleep(_QUIET_S)
                continue
            try:
                keys = os.read(0, _CHUNK_BYTES)
                if not keys:
                    return
                before, suspend_key, after = keys.partition(self._suspend_key() or keys + b"-")
                write_all(self.master, before)
                if suspend_key:  # what the real terminal would do
                    os.killpg(os.getpgrp(), signal.SIGTSTP)
                write_all(self.master, after)
            except (OSError, termios.error):  # the real terminal, or that of the program, is gone
                return

    def _suspend_key(self) -> bytes:
        """Ctrl-Z, if it would stop the program itself. A shell in the terminal stops its jobs by itself."""
        settings = termios.tcgetattr(self.master)
        sends_signals = bool(settings[3] & termios.ISIG)
        leads_its_group = os.tcgetpgrp(self.master) == os.getsid(os.tcgetpgrp(self.master))
        key = settings[6][termios.VSUSP]
        return key if sends_signals and leads_its_group and isinstance(key, bytes) and key != b"\0" else b""
