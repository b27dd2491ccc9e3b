"""Starts the page: for a command that waits (`glass page`), or beside a run, in a process of its own.

    url = start_beside_run(Path("runs/quickstart"))     # http://127.0.0.1:8421/?token=…

The process has its own session, so that Ctrl-C does not reach it, and a low priority. It only reads, so one
that hangs or is killed costs the run nothing; nobody waits for it. It ends with the run: at once if nobody
looks, else when the last tab is closed, after ten minutes at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import getpass
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from glassgpt.errors import UserError
from glassgpt.files import child_pythonpath
from glassgpt.i18n import preferred_language, translate, use_language

INSTALL = "pip install 'glassgpt[page]'"
HOST = "127.0.0.1"
FIRST_PORT, _PORTS = 8421, 20  # tried one after the other; then any
NO_TAB_S = 15.0  # a page that is reloaded, or a laptop's moment without network
MAX_AFTER_RUN_S = 600.0
_LOOK_S = 0.25
_NICENESS = 10
_TOKEN_BYTES = 24
# A rank's environment is not that of the process that samples.
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


PageMode = Literal["auto", "on", "off"]


def page_problems() -> list[str]:
    """Why there can be no page here."""
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        return [f"the page needs starlette and uvicorn: {INSTALL}"]
    return []


# --- the address ---


@dataclass(frozen=True)
class Address:
    listener: socket.socket
    token: str

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/?token={self.token}"


def bind(port: int = 0) -> Address:
    """A socket that listens on this machine only. `port` 0: the first free one from 8421 on."""
    for candidate in (port,) if port else (*range(FIRST_PORT, FIRST_PORT + _PORTS), 0):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if os.name != "nt":  # there, it would let another program take the port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, candidate))
            listener.listen()
            return Address(listener, secrets.token_urlsafe(_TOKEN_BYTES))
        except OSError as error:
            listener.close()
            if port or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise UserError(f"--port={candidate} cannot be used: {error.strerror}") from None
    raise UserError("no port of 127.0.0.1 is free")


def ssh_line(port: int) -> str:
    """The command with which another machine reaches the page."""
    # Client's address and port, then ours as the client knows them.
    connection = os.environ.get("SSH_CONNECTION", "").split()
    host, ssh_port = socket.gethostname(), ""
    if len(connection) == 4 and all(part.isprintable() for part in connection):
        host, ssh_port = connection[2], connection[3]
    flag = f" -p {ssh_port}" if ssh_port not in ("", "22") else ""
    try:
        user = f"{getpass.getuser()}@"
    except (OSError, KeyError):  # a container without a user
        user = ""
    return f"ssh -L {port}:{HOST}:{port}{flag} {user}{host}"


# --- serving ---


@dataclass
class Lifetime:
    """When a server ends by itself: `idle_s` after the last tab, once `is_over` says that what it was started
    for is over, and `max_s` after that in any case. `clock`: seconds that never go back."""

    is_over: Callable[[], bool] = lambda: False
    idle_s: float = NO_TAB_S
    max_s: float = MAX_AFTER_RUN_S
    clock: Callable[[], float] = time.monotonic
    _over_at: float | None = None

    def has_ended(self, now: float, last_seen_at: float) -> bool:
        """`last_seen_at`: when a tab was open, or asked for something."""
        if self._over_at is None and self.is_over():
            self._over_at = now
        if self._over_at is None:
            return False
        return now - max(last_seen_at, self._over_at) >= self.idle_s or now - self._over_at >= self.max_s


def serve(address: Address, sources: Sequence[str], lifetime: Lifetime, language: str = "") -> None:
    """Until the lifetime ends, or a signal."""
    with use_language(language or preferred_language()):
        asyncio.run(_serve(address, sources, lifetime))


async def _serve(address: Address, sources: Sequence[str], lifetime: Lifetime) -> None:
    import uvicorn

    from glassgpt.show.page.run_folder import RunFolder
    from glassgpt.show.page.server import PageServer

    page = PageServer(RunFolder(sources), address.token, clock=lifetime.clock)
    config = uvicorn.Config(
        page.app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,  # errors go to stderr, by Python's default
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=200,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)

    async def look() -> None:
        while not server.should_exit:
            page.runs.close_idle()
            if lifetime.has_ended(lifetime.clock(), page.last_request_at):
                server.should_exit = True
            await asyncio.sleep(_LOOK_S)
        page.close()  # ends the event streams, which uvicorn would wait for

    looking, reading = asyncio.create_task(look()), asyncio.create_task(page.read_ahead())
    try:
        await server.serve(sockets=[address.listener])
    finally:
        server.should_exit = True
        await looking
        reading.cancel()


# --- beside a run ---


def page_beside_run(mode: PageMode, language: str, run_dir: Path) -> str:
    """Start the page of a run that begins, if `mode` says so: its URL, or in one line why there is none."""
    is_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    if mode == "off" or (mode == "auto" and (is_ci or not sys.stdout.isatty())):
        return ""
    if os.name != "posix":  # no socket can be passed on
        return "" if mode == "auto" else translate("page_launch.none", reason=os.name)
    if page_problems():
        return translate("page_launch.install", command=INSTALL)
    try:
        url = start_beside_run(run_dir, language)
        if "SSH_CONNECTION" not in os.environ:
            return url
        command = ssh_line(urlsplit(url).port or FIRST_PORT)
        return translate("page_launch.over_ssh", url=url, command=command)
    except (OSError, UserError) as error:  # no port, no process: the run does without
        return translate("page_launch.none", reason=str(error))


def start_beside_run(run_dir: Path, language: str = "") -> str:
    """Start a process that serves the page as long as this one lives; its URL. Connections that come before
    it has started wait in the socket."""
    address = bind()
    url = address.url
    environment = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    with address.listener:
        process = subprocess.Popen(
            (sys.executable, "-P", "-m", "glassgpt.show.page.launch"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # after the run, the terminal is somebody else's
            env=environment | {"PYTHONPATH": child_pythonpath(), "OMP_NUM_THREADS": "1"},
            pass_fds=(address.listener.fileno(),),
            start_new_session=True,
        )
        # Not by the command line, which every user of the machine can read.
        order = {
            "source": str(run_dir.absolute()),
            "token": address.token,
            "language": language,
            "socket": address.listener.fileno(),
            "parent": os.getpid(),
            "idle_s": NO_TAB_S,
        }
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(order).encode())
    process.returncode = 0  # nobody waits for it: no warning that it still runs
    return url


def main() -> None:
    """The process beside a run. Reads its order from standard input."""
    order = json.load(sys.stdin)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # `glass train` blocks some, and we inherit that
    os.nice(_NICENESS)
    parent = order["parent"]
    address = Address(socket.socket(fileno=order["socket"]), order["token"])
    # A process whose parent has ended gets another one.
    lifetime = Lifetime(lambda: os.getppid() != parent, order["idle_s"])
    serve(address, [order["source"]], lifetime, order["language"])


if __name__ == "__main__":
    main()
