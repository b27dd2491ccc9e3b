"""`glass watch -- python train.py` with real nanoGPT: output, exit codes, Ctrl-C, and the page's sentence.

    python -m bench.watch_nanogpt NANOGPT     # a checkout whose data/shakespeare_char is prepared; CPU

The last line is one JSON document; the exit code is 1 if one of its checks is false.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

_SMALL = [
    "config/train_shakespeare_char.py",
    "--device=cpu",
    "--compile=False",
    "--eval_iters=2",
    "--eval_interval=20",
    "--log_interval=1",
    "--block_size=32",
    "--batch_size=4",
    "--n_layer=2",
    "--n_head=2",
    "--n_embd=32",
    "--dropout=0.0",
]
_LIMIT_S = 300.0
_EXIT_OF_SIGINT = 128 + signal.SIGINT


def trainer(*flags: str) -> list[str]:
    return [sys.executable, "train.py", *_SMALL, *flags]


def watched(command: list[str], page: str = "off") -> list[str]:
    return [sys.executable, "-m", "glassgpt", "watch", f"--page={page}", "--", *command]


def view_of(url: str) -> dict[str, Any]:
    """What the page shows of its run."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    base = url.partition("?")[0]
    opener.open(url).read()
    run = json.load(opener.open(f"{base}api/runs"))["selected"]
    view: dict[str, Any] = json.load(opener.open(f"{base}api/runs/{run}/view"))["view"]
    return view


def check_output(nanogpt: Path, folder: Path) -> bool:
    """What a `tee` inside saw is what came out, and what was saved."""
    raw = folder / "raw"
    line = f"{shlex.join(trainer('--max_iters=40', f'--out_dir={folder}/out'))} 2>&1 | tee {raw}"
    result = subprocess.run(watched(["sh", "-c", line]), cwd=nanogpt, capture_output=True, check=True)
    saved = re.search(rb"saved in (\S+)", result.stderr)
    assert saved is not None
    return raw.read_bytes() == result.stdout == (nanogpt / saved[1].decode()).read_bytes() != b""


def check_exit_code(nanogpt: Path) -> bool:
    command = trainer("--no_such_setting=1")
    codes = [
        subprocess.run(words, cwd=nanogpt, capture_output=True, check=False).returncode
        for words in (command, watched(command))
    ]
    return codes[0] == codes[1] != 0


def check_page_and_ctrl_c(nanogpt: Path, folder: Path) -> dict[str, Any]:
    """Ctrl-C in a terminal goes to the whole process group."""
    command = trainer("--max_iters=100000", "--lr_decay_iters=100000", f"--out_dir={folder}/out")
    process = subprocess.Popen(
        watched(command, "on"), cwd=nanogpt, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    url = next(address[0] for line in process.stderr if (address := re.search(r"http://\S+token=\S+", line)))
    printed = 0
    for line in process.stdout:
        if found := re.match(r"iter (\d+): loss", line):
            printed = int(found[1])
        if printed >= 60:
            break
    running = view_of(url)["sentence"]
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=_LIMIT_S)
    place = re.search(r"iteration ([\d,]+) of 100,000", running)
    deadline = time.monotonic() + 30
    while (ended := view_of(url))["live"] and time.monotonic() < deadline:
        time.sleep(0.5)
    return {
        "sentence": running,
        "sentence_is_right": place is not None and int(place[1].replace(",", "")) >= printed - 5,
        "ctrl_c_exit_code_is_130": process.returncode == _EXIT_OF_SIGINT,
        "sentence_after_ctrl_c": ended["sentence"],
        "knows_that_it_was_stopped": not ended["live"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.watch_nanogpt", description=__doc__)
    parser.add_argument("nanogpt", type=Path)
    nanogpt = parser.parse_args().nanogpt
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checks = {
            "output_is_the_same": check_output(nanogpt, folder),
            "exit_code_is": check_exit_code(nanogpt),
        }
        checks |= check_page_and_ctrl_c(nanogpt, folder)
    print(json.dumps(checks))
    return 0 if all(value is not False for value in checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
