"""What TAB offers: by the program, and once in a real bash."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment, finished_run, glass, write_run

from glassgpt.cli import COMMAND_MODULES, load_command, main
from glassgpt.cli.completion import SHELLS, complete_line
from glassgpt.flags import SYNONYMS, field_types
from glassgpt.recipe import preset_names


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, an export and a dataset."""
    write_run(tmp_path / "runs/mine", finished_run())
    for path in ("runs/empty/a", "data/own/manifest.json", "exports/mine-hf/glassgpt.json", "my.log"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


OFFERS = {
    "glass tr": ["train", "track"],
    "glass --v": ["--version"],
    "glass nothing ": [],
    "cd project && CUDA_VISIBLE_DEVICES=1 glass tu": ["tune"],  # zsh passes the whole line
    "glass train gpt2_124m_": ["gpt2_124m_fast"],
    "glass train --prof": ["--profile"],
    "glass train --nproc=2 --np": [],  # once is enough
    "glass train --track=csv,t": ["--track=csv,tensorboard", "--track=csv,trackio"],
    "glass train --compile=o": ["--compile=on", "--compile=off"],
    "glass train --compile o": ["on", "off"],
    "glass train --decay_lr=": ["--decay_lr=True", "--decay_lr=False"],
    "glass train --fs": ["--fsdp"],
    "glass train --fsdp=True --shar": [],
    "glass train --bias=": ["--bias=True", "--bias=False"],
    "glass train --bias=False gpt2_124m_": ["gpt2_124m_fast"],
    "glass train --compile=True gpt2_124m_": ["gpt2_124m_fast"],
    "glass train --compile gpt2_124m_": ["gpt2_124m_fast"],
    "glass train --dataset=": ["--dataset=own"],
    "glass train --init_from=r": ["--init_from=resume", "--init_from=runs/mine"],
    "glass train --out_dir=ex": ["--out_dir=exports/"],
    "glass train --eval_only shakespeare_char_cpu_": ["shakespeare_char_cpu_fast"],
    "glass plan --gp": ["--gpu", "--gpus"],
    "glass plan --n_la": ["--n_layer"],
    "glass eval ": ["runs/mine", "data/own"],
    "glass verify ": ["runs/mine", "exports/mine-hf", "data/own"],
    "glass explain r": ["runs/mine"],
    "glass explain m": ["my.log"],
    "glass watch r": ["runs/mine"],
    "glass watch --page=o": ["--page=on", "--page=off"],
    "glass compare runs/mine r": ["runs/mine"],
    "glass compare --b": ["--b.config"],
    "glass explain --lang=": ["--lang=en", "--lang=hi", "--lang=ar"],
    "glass track runs/mine --to=w": ["--to=wandb"],
    "glass export runs/mine --to n": ["nanogpt"],
    "glass prepare shakespeare_": ["shakespeare_char"],
    "glass completion ": ["bash", "zsh", "fish"],
}


def test_offers(place: Path) -> None:
    assert {line: complete_line(line) for line in OFFERS} == OFFERS
    assert set(complete_line("glass ")) == set(COMMAND_MODULES)
    assert complete_line("glass train ") == preset_names()
    assert not [name for name in os.environ if name.startswith(("_ARGCOMPLETE", "COMP_"))]


def test_a_folder_cannot_be_called_a_command(place: Path) -> None:
    """What is offered stands on the line: a TAB and a return must not run it."""
    for name in ("$(touch owned)", "`id`", "a b", "a;b", "a\nb", "a\x1b[2J", "{a,b}", "\u202eb"):
        write_run(place / "runs" / name, finished_run())
    offered = complete_line("glass show ")
    unsafe = r"\$\(touch\ owned\)", r"\{a,b\}", r"\`id\`", r"a\ b", r"a\;b"
    assert sorted(offered) == sorted(f"runs/{name}" for name in (*unsafe, "mine"))


def test_every_flag_is_offered_and_known(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMAND_MODULES:
        offered = {offer.removeprefix("--") for offer in complete_line(f"glass {name} --")}
        assert main([name, "--help"]) == 0
        printed = set(re.findall(r"(?<![\w-])--(\w[\w.]*)", capsys.readouterr().out))
        assert offered >= {*field_types(load_command(name).flags), "help"}, name
        assert printed - offered == set(), name
        words = [f"--{flag}=" for flag in offered - {"help", *SYNONYMS.values()}]
        if words:
            assert main([name, *words]) == 2
            assert "unknown" not in capsys.readouterr().err, name


def test_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["tcsh"], ["bash", "zsh"], ["--line"]):
        assert main(["completion", *words]) == 2
        error = capsys.readouterr().err
        assert re.search(r"error: (say which shell it is for: bash, zsh, fish|--line needs a value)", error)


def test_it_does_not_import_torch() -> None:
    code = (
        "import sys; from glassgpt.cli import main; main(['completion', '--line=glass train --']);"
        "main(['completion', '--line=glass prepare ']); print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "False\n"
    assert "--learning_rate" in done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_of_the_shell(shell: str) -> None:
    done = glass("completion", shell)
    assert (done.returncode, done.stderr) == (0, b"")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    subprocess.run([shell, "-n"], input=done.stdout, check=True, timeout=60)


def test_tab_in_bash(place: Path) -> None:
    """In a shell that believes to have a terminal."""
    (place / "bin").mkdir()
    program = place / "bin/glass"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m glassgpt "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    child, terminal = pty.fork()
    if child == 0:
        variables = environment() | {"PATH": path, "TERM": "dumb", "PS1": "> ", "HOME": str(place)}
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], variables)
    try:
        os.write(terminal, b"source <(glass completion bash); echo rea''dy\n")
        read_until(terminal, "ready")
        os.write(terminal, b"glass expl\t")
        read_until(terminal, "glass explain ")
        os.write(terminal, b"\x15glass train --compile=of\t")
        read_until(terminal, "glass train --compile=off ")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, expected: str) -> None:
    seen = ""
    while expected not in seen:
        ready, _, _ = select.select([terminal], [], [], 20)
        assert ready, f"no {expected!r} in {seen!r}"
        seen += os.read(terminal, 4096).decode(errors="replace")
