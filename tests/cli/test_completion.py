"""What TAB offers, by the program itself and in real shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment, finished_run, glass, write_run

from glassgpt.cli import COMMAND_MODULES, load_command, main
from glassgpt.cli.command import capture_help
from glassgpt.cli.completion import SHELLS, complete_line
from glassgpt.flags import field_types, parse_flags
from glassgpt.recipe import preset_names


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run and a dataset, and `glass` on the PATH."""
    write_run(tmp_path / "runs/mine", finished_run())
    (tmp_path / "runs/empty").mkdir()
    (tmp_path / "data/own").mkdir(parents=True)
    (tmp_path / "exports/mine-hf").mkdir(parents=True)
    (tmp_path / "exports/mine-hf/glassgpt.json").write_text("{}")
    (tmp_path / "data/own/manifest.json").write_text("{}")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/glass"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m glassgpt "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.chdir(tmp_path)
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("glass tr", ["train", "track"]),
        ("glass --v", ["--version"]),
        ("glass nothing ", []),
        ("glass verify ", ["runs/mine", "exports/mine-hf", "data/own"]),
        ("glass verify --", ["--json", "--help"]),
        ("glass train gpt2_124m_", ["gpt2_124m_fast"]),
        ("glass train --prof", ["--profile="]),
        ("glass train --tun", ["--tune"]),
        ("glass train --np", ["--nproc="]),
        ("glass train --nproc=2 --np", []),
        ("glass train --nproc ", []),  # a number, not a preset
        ("glass train --track=", ["--track=csv", "--track=tensorboard", "--track=trackio", "--track=wandb"]),
        ("glass train --track=csv,t", ["--track=csv,tensorboard", "--track=csv,trackio"]),
        ("glass train --compile=o", ["--compile=on", "--compile=off"]),
        ("glass train --compile o", ["on", "off"]),
        ("glass train --decay", ["--decay_lr="]),  # it is on; bare it would change nothing
        ("glass train --decay_lr=", ["--decay_lr=True", "--decay_lr=False"]),
        ("glass train --eval_on", ["--eval_only"]),
        ("glass train --eval-on", []),  # a dash is understood, not offered
        ("glass train --dataset=", ["--dataset=own"]),
        ("glass train --init_from=r", ["--init_from=resume", "--init_from=runs/mine"]),
        ("glass train --out_dir=", []),  # files are the shell's
        ("glass train --seed=1 --see", []),  # once is enough
        ("glass train --eval_only shakespeare_char_cpu_", ["shakespeare_char_cpu_fast"]),
        ("glass plan --gp", ["--gpu=", "--gpus="]),
        ("glass plan --n_la", ["--n_layer="]),
        ("glass explain r", ["runs/mine"]),
        ("glass compare runs/mine r", ["runs/mine"]),
        ("glass sample r", ["runs/mine"]),
        ("glass explain --js", ["--json"]),
        ("glass compare --b", ["--b.config="]),
        ("glass explain --lang=", ["--lang=en", "--lang=hi", "--lang=ar"]),
        ("glass track runs/mine --to=w", ["--to=wandb"]),
        ("glass export runs/mine --to=", ["--to=hf", "--to=nanogpt", "--to=glass"]),
        ("glass export runs/mine --to n", ["nanogpt"]),
        ("glass prepare shakespeare_", ["shakespeare_char"]),
        ("glass completion ", ["bash", "zsh", "fish"]),
        ("glass explain x\x00 --j\x00", []),
    ],
)
def test_offers(place: Path, line: str, expected: list[str]) -> None:
    assert complete_line(line) == expected


def test_a_folder_cannot_be_called_a_command(place: Path) -> None:
    """What is offered stands on the line unquoted: a TAB and a return would run it."""
    for name in (
        "$(touch owned)",
        "`id`",
        "a b",
        "a;b",
        "a\nb",
        "a\x1b[2J",
        "q'",
        "*",
        "~",
        "{a,b}",
        "\u202eb",
    ):
        write_run(place / "runs" / name, finished_run())
    write_run(place / "runs" / "कांच-1.5,b", finished_run())
    assert complete_line("glass show ") == ["runs/mine", "runs/कांच-1.5,b"]
    assert complete_line("glass show runs/a") == []  # the shell's own, which quotes


def test_everything_is_offered() -> None:
    assert complete_line("glass ") == [*COMMAND_MODULES, "--help", "--version"]
    assert complete_line("glass train ") == preset_names()
    for name in COMMAND_MODULES:
        offered = {offer.rstrip("=") for offer in complete_line(f"glass {name} --")}
        assert offered >= {
            f"--{field}" for field in field_types(capture_help(load_command(name)).options)
        } | {"--help"}


@pytest.mark.parametrize("name", COMMAND_MODULES)
def test_every_flag_in_the_help_is_offered(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In what is printed, wherever it stands there."""
    assert main([name, "--help"]) == 0
    printed = set(re.findall(r"(?<![\w-])--(\w[\w.]*)", capsys.readouterr().out)) - {"key"}
    offered = {offer.strip("-=") for offer in complete_line(f"glass {name} --")}
    assert printed >= {"help"}
    assert printed - offered == set()


def test_every_flag_offered_is_one_that_the_command_knows(place: Path) -> None:
    """Given one after the other, none of them is called unknown."""
    for name in COMMAND_MODULES:
        flags = [offer for offer in complete_line(f"glass {name} --") if offer != "--help"]
        if flags:
            words = [flag if flag.endswith("=") else f"{flag}=" for flag in flags]
            assert parse_flags(words, object)[2] == []
            done = glass(name, *words)
            assert done.returncode == 2
            assert b"unknown" not in done.stderr, name


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_printed(shell: str) -> None:
    done = glass("completion", shell)
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"glass completion {shell}".encode() in done.stdout


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "zsh"], ["--line"]])
def test_what_it_cannot_do(words: list[str]) -> None:
    done = glass("completion", *words)
    assert done.returncode == 2
    assert done.stdout == b""
    assert re.search(
        rb"error: (say which shell it is for: bash, zsh, fish|--line needs a value)", done.stderr
    )


def test_it_does_not_import_torch() -> None:
    code = (
        "import sys; from glassgpt.cli import main; main(['completion', '--line=glass train --']);"
        "main(['completion', '--line=glass prepare ']); print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "False\n"
    assert "--learning_rate=" in done.stdout


# --- in shells ---


def completions(shell: str, script: str) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    start = {"bash": ["bash", "--norc"], "zsh": ["zsh", "-f"], "fish": ["fish", "--no-config"]}[shell]
    done = subprocess.run(
        [*start, "-c", script], capture_output=True, text=True, timeout=60, env=environment()
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


# Words as bash parts them, = being one of its own.
BASH = """
source <(glass completion bash)
complete -p glass >/dev/null || exit 9
COMP_LINE={line} COMP_POINT=${{#COMP_LINE}}
COMP_WORDS=({words}) COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_glass
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("line", "words", "expected"),
    [
        ("glass expl", "glass expl", ["explain"]),
        (
            "glass train shakespeare_char_cpu_",
            "glass train shakespeare_char_cpu_",
            ["shakespeare_char_cpu_fast"],
        ),
        ("glass train --prof", "glass train --prof", ["--profile="]),
        ("glass train --compile=o", "glass train --compile = o", ["on", "off"]),
        ("glass train --init_from=ru", "glass train --init_from = ru", ["runs/mine"]),
        ("glass show ", "glass show ''", ["runs/mine"]),
        ("glass show nothing", "glass show nothing", [""]),
    ],
)
def test_bash(place: Path, line: str, words: str, expected: list[str]) -> None:
    assert completions("bash", BASH.format(line=f"'{line}'", words=words)) == expected


# How each is set up by whoever uses it.
SETUP = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source <(glass completion bash)"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit && compinit -u -D && source <(glass completion zsh)"),
}


@pytest.mark.parametrize("shell", SETUP)
@pytest.mark.parametrize(
    ("typed", "completed"),
    [("glass expl\t", "glass explain "), ("glass train --compile=of\t", "glass train --compile=off ")],
)
def test_tab_itself(place: Path, shell: str, typed: str, completed: str) -> None:
    """In a shell that believes to have a terminal."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    command, setup = SETUP[shell]
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(command[0], command, {**environment(), "TERM": "dumb", "PS1": "> ", "HOME": str(place)})
    try:
        os.write(terminal, f"{setup}; echo rea''dy\n".encode())
        read_until(terminal, "ready")
        os.write(terminal, typed.encode())
        assert completed in read_until(terminal, completed)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, expected: str) -> str:
    seen = ""
    while expected not in seen:
        ready, _, _ = select.select([terminal], [], [], 20)
        assert ready, f"no {expected!r} in {seen!r}"
        seen += os.read(terminal, 4096).decode(errors="replace")
    return seen


ZSH = """
compdef() {{ [[ "$*" == '_glass glass' ]] || exit 9 }}
compadd() {{ while [[ "$1" != -- ]]; do shift; done; shift; print -rl -- $@ }}
compset() {{ : }}
_files() {{ print files }}
source <(glass completion zsh)
words=({words}) CURRENT=$#words
_glass
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("glass comp", ["compare", "completion"]),
        ("glass train --compile=o", ["--compile=on", "--compile=off"]),
        ("glass train --prof", ["--profile="]),
        ("glass show ''", ["runs/mine"]),
        ("glass train --out_dir=", ["files"]),
    ],
)
def test_zsh(place: Path, words: str, expected: list[str]) -> None:
    """What the script hands to zsh, whose own functions need a terminal."""
    assert [line for line in completions("zsh", ZSH.format(words=words)) if line] == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("glass comp", ["compare", "completion"]),
        ("glass train --compile=o", ["--compile=off", "--compile=on"]),
        ("glass show ", ["runs/mine"]),
        ("glass train --out_dir=ru", ["--out_dir=runs/"]),
    ],
)
def test_fish(place: Path, line: str, expected: list[str]) -> None:
    assert sorted(completions("fish", f"glass completion fish | source; complete -C '{line}'")) == expected
