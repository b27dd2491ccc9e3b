"""nanoGPT's README from top to bottom, with `glass` in place of its scripts: who knows that one is at home.

Twice: in an empty folder, where presets stand in for config/*.py, and in one that has these files, written
here with nanoGPT's values. Training commands are made small by flags; each must really have done updates,
each sampling command really have written text, and what cannot work here must say why, with code 2.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from glassgpt.cli import main
from glassgpt.data.bpe import train_bpe
from glassgpt.recipe import build_config, find_recipe
from glassgpt.record import journal

TEXT = "It was a bright cold day in April, and the clocks were striking thirteen.\n" * 120

# Facts of nanoGPT's config files, in its own form; the comments are ours.
CONFIGS = {
    "train_shakespeare_char": """
# letters of Shakespeare

out_dir = 'out-shakespeare-char'
eval_interval = 250 # often
eval_iters = 200
log_interval = 10 # seldom

always_save_checkpoint = False

wandb_log = False # no
wandb_project = 'shakespeare-char'
wandb_run_name = 'mini-gpt'

dataset = 'shakespeare_char'
gradient_accumulation_steps = 1
batch_size = 64
block_size = 256 # characters

n_layer = 6
n_head = 6
n_embd = 384
dropout = 0.2

learning_rate = 1e-3
max_iters = 5000
lr_decay_iters = 5000 # all of them
min_lr = 1e-4 # a tenth
beta2 = 0.99

warmup_iters = 100

# device = 'cpu'
# compile = False
""",
    "train_gpt2": """
# the large one

wandb_log = True
wandb_project = 'owt'
wandb_run_name='gpt2-124M'

batch_size = 12
block_size = 1024
gradient_accumulation_steps = 5 * 8

max_iters = 600000
lr_decay_iters = 600000

eval_interval = 1000
eval_iters = 200
log_interval = 10

weight_decay = 1e-1
""",
    "finetune_shakespeare": """
import time

out_dir = 'out-shakespeare'
eval_interval = 5
eval_iters = 40
wandb_log = False # no
wandb_project = 'shakespeare'
wandb_run_name = 'ft-' + str(time.time())

dataset = 'shakespeare'
init_from = 'gpt2-xl' # the largest

always_save_checkpoint = False

batch_size = 1
gradient_accumulation_steps = 32
max_iters = 20

learning_rate = 3e-5
decay_lr = False
""",
} | {
    f"eval_{name.replace('-', '_')}": f"""
# how good is {name}?
batch_size = 8
eval_iters = 500 # many
eval_only = True
wandb_log = False
init_from = '{name}'
"""
    for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
}

CHAR = "python train.py config/train_shakespeare_char.py"
LAPTOP = (
    f"{CHAR} --device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 "
    "--n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)
SMALL = ["--max_iters=3", "--eval_interval=2", "--n_layer=1", "--n_embd=48", "--batch_size=2"]
QUICK = ["--probe_seconds=0", "--device=cpu"]
FEW = ["--num_samples=2", "--max_new_tokens=20"]

Capture = pytest.CaptureFixture[str]


class Reader:
    """Types the README's commands, one after the other, in one folder."""

    def __init__(self, folder: Path, capsys: Capture, has_files: bool) -> None:
        self.folder, self.capsys, self.has_files = folder, capsys, has_files

    def type(self, command: str, *flags: str) -> tuple[int, str, str]:
        """Flags replace those of the same name."""
        words = shlex.split(command)
        if words[0] == "torchrun" and self.has_files:
            return self._type_torchrun(words, *flags)
        words = ["python", *words[words.index("train.py") :]] if words[0] == "torchrun" else words
        script = words[1]
        if script.endswith("prepare.py"):
            # In nanoGPT's folder one types the script itself, elsewhere its dataset's name.
            ours = ["prepare", script if self.has_files else Path(script).parent.name]
        else:
            ours = [script.removesuffix(".py"), *words[2:]]
        given = {flag.partition("=")[0] for flag in flags}
        kept = [word for word in ours if word.partition("=")[0] not in given]
        self.capsys.readouterr()
        code = main([*kept, *flags])
        return code, *self.capsys.readouterr()

    def _type_torchrun(self, words: list[str], *flags: str) -> tuple[int, str, str]:
        """In two processes instead of eight; by `--nproc`, which is torchrun with an exit code that tells."""
        ours = ["train", *words[words.index("train.py") + 1 :], *flags, "--nproc=2"]
        command = [sys.executable, "-m", "glassgpt", *ours]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout, done.stderr

    def trains(self, command: str, run_dir: str, *flags: str, updates: int = 3) -> dict[str, Any]:
        """It does its updates in a new folder. Returns the settings it did them with."""
        assert not Path(run_dir).exists()
        code, out, err = self.type(command, *flags)
        assert (code, err) == (0, ""), err
        assert f"end           finished after {updates} updates" in out
        records = list(journal.read(Path(run_dir, journal.FILE_NAME)))
        assert [record["iter"] for record in records if record["kind"] == "step"][-1] == updates
        assert [record["kind"] for record in records].count("run") == 1
        config: dict[str, Any] = records[0]["config"]
        return config

    def samples(self, command: str, run_dir: str, *flags: str) -> list[str]:
        """It writes text, with the run that is meant."""
        code, out, err = self.type(command, *FEW, *flags)
        assert code == 0, err
        assert err.startswith(f"model         {run_dir}/checkpoints/")
        *samples, rest = out.split("\n---------------\n")
        assert rest == ""
        assert len(samples) == 2
        assert all(len(sample) >= 20 for sample in samples)
        return samples

    def is_told(self, command: str, *reasons: str, flags: tuple[str, ...] = ()) -> None:
        """It cannot work here; why is said in one line, and nothing is left behind."""
        before = sorted(self.folder.rglob("*"))
        code, out, err = self.type(command, *flags)
        assert code == 2
        assert re.sub(r"^data/\w+/prepare.py is nanoGPT's script for .+\n", "", out) == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        for reason in reasons:
            assert reason in err
        assert sorted(self.folder.rglob("*")) == before


@pytest.fixture(params=["presets", "files"])
def reader(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> Reader:
    folder = tmp_path / "nanoGPT"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (tmp_path / "tiny.txt").write_text(TEXT)
    if request.param == "files":
        write_repository(folder)
    cut_off(monkeypatch, tmp_path)
    return Reader(folder, capsys, request.param == "files")


def write_repository(folder: Path) -> None:
    (folder / "config").mkdir()
    for name, text in CONFIGS.items():
        (folder / "config" / f"{name}.py").write_text(text.lstrip())
    for name in ("shakespeare_char", "shakespeare", "openwebtext"):
        (folder / "data" / name).mkdir(parents=True)
        (folder / "data" / name / "prepare.py").write_text("raise SystemExit('never executed')\n")
        (folder / "data" / name / "readme.md").write_text("about the data\n")


def cut_off(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """No network, and nothing that was downloaded before."""

    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network")

    import huggingface_hub.constants
    import tiktoken.load

    patch.setattr(urllib.request, "urlopen", no_network)
    patch.setattr(tiktoken.load, "read_file_cached", no_network)
    patch.setattr("glassgpt.track.trackers.find_spec", lambda name: object())  # wandb may not be there
    patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        patch.delenv(variable, raising=False)
    patch.setenv("HF_HOME", str(folder / "hf"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2 in small, as `transformers` saves it, with a tokenizer."""
    transformers = pytest.importorskip("transformers")
    tokenizer = train_bpe([TEXT], 280)
    shape = {"vocab_size": tokenizer.vocab_size, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 3}
    folder = tmp_path_factory.mktemp("hf") / "little-gpt2"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)).save_pretrained(folder)
    for name, content in tokenizer.files.items():
        (folder / name).write_bytes(content)
    return folder


def test_the_readme_from_top_to_bottom(reader: Reader, gpt2: Path) -> None:
    # --- quick start
    prepare = "python data/shakespeare_char/prepare.py"
    reader.is_told(prepare, "could not be downloaded", "glass prepare shakespeare_char --source FILE")
    code, out, err = reader.type(prepare, "--source=../tiny.txt")
    assert (code, err) == (0, "")
    assert "data/shakespeare_char: " in out

    config = reader.trains(CHAR, "out-shakespeare-char", *SMALL, *QUICK, "--eval_iters=2")
    assert (config["dropout"], config["learning_rate"], config["block_size"]) == (0.2, 1e-3, 256)
    assert (config["warmup_iters"], config["beta2"], config["always_save_checkpoint"]) == (100, 0.99, False)
    samples = reader.samples("python sample.py --out_dir=out-shakespeare-char", "out-shakespeare-char")
    assert set("".join(samples)) <= set(TEXT)

    small = [
        "--max_iters=3",
        "--lr_decay_iters=3",
        "--eval_iters=2",
        "--eval_interval=2",
        "--probe_seconds=0",
    ]
    config = reader.trains(LAPTOP, "out-shakespeare-char-2", *small)
    assert (config["n_layer"], config["n_embd"], config["block_size"], config["dropout"]) == (4, 128, 64, 0.0)
    assert (config["compile"], config["device"], config["log_interval"]) == ("off", "cpu", 1)
    on_cpu = "python sample.py --out_dir=out-shakespeare-char --device=cpu"
    reader.samples(on_cpu, "out-shakespeare-char-2")

    if not torch.backends.mps.is_available():
        not_here = "--device=mps is not available here; try --device=auto or --device=cpu"
        reader.is_told(LAPTOP, not_here, flags=("--device=mps",))
        reader.is_told(on_cpu, not_here, flags=("--device=mps",))

    # --- reproducing GPT-2
    bring = ("hf download Skylion007/openwebtext", "glass prepare openwebtext --source FOLDER")
    reader.is_told("python data/openwebtext/prepare.py", *bring, flags=("--tokenizer=byte",))
    reader.is_told(
        "torchrun --standalone --nproc_per_node=8 train.py config/train_gpt2.py",
        "no dataset at data/openwebtext",
        flags=("--device=cpu",),
    )
    reader.is_told(
        "python train.py config/train_gpt2.py", "no dataset at data/openwebtext", flags=("--device=cpu",)
    )
    reader.samples("python sample.py", "out-shakespeare-char-2")
    reader.trains("python train.py", "runs/quickstart", *SMALL, *QUICK, "--n_head=4", "--eval_tokens=256")
    assert Path("data/pylib/train.bin").exists()

    # --- baselines
    for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
        command = f"python train.py config/eval_{name.replace('-', '_')}.py"
        reader.is_told(command, f"the weights of {name} are not on this machine")

    # --- finetuning
    tokens = "python data/shakespeare/prepare.py"
    reader.is_told(tokens, "GPT-2's tokenizer could not be downloaded", flags=("--source=../tiny.txt",))
    finetune = "python train.py config/finetune_shakespeare.py"
    reader.is_told(finetune, "the weights of gpt2-xl are not on this machine")
    code, _, err = reader.type(tokens, "--source=../tiny.txt", f"--tokenizer_files={gpt2}")
    assert (code, err) == (0, "")
    config = reader.trains(
        finetune, "out-shakespeare", f"--init_from={gpt2}", "--max_iters=2", *QUICK, updates=2
    )
    assert (config["learning_rate"], config["decay_lr"], config["n_embd"]) == (3e-5, False, 24)
    assert (config["batch_size"], config["gradient_accumulation_steps"], config["bias"]) == (1, 32, True)
    reader.samples("python sample.py --out_dir=out-shakespeare", "out-shakespeare")

    # --- sampling
    question = "What is the answer to life, the universe, and everything?"
    largest = (
        f"python sample.py --init_from=gpt2-xl --start='{question}' --num_samples=5 --max_new_tokens=100"
    )
    reader.is_told(largest, "the weights of gpt2-xl are not on this machine")
    code, out, err = reader.type(largest, f"--init_from={gpt2}", "--max_new_tokens=10")
    assert code == 0, err
    assert out.count(question) == 5
    Path("prompt.txt").write_text("It was a bright ")
    samples = reader.samples("python sample.py --start=FILE:prompt.txt", "out-shakespeare")
    assert all(sample.startswith("It was a bright ") for sample in samples)

    # --- troubleshooting
    config = reader.trains(
        f"{CHAR} --compile=False", "out-shakespeare-char-3", *SMALL, *QUICK, "--eval_iters=2"
    )
    assert config["compile"] == "off"
    reader.samples("python sample.py --compile=False", "out-shakespeare-char-3")


def test_a_preset_stands_for_each_file_and_means_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_repository(tmp_path)
    # What the presets leave to this program, and what has no effect: where to send numbers, how the rate
    # would decay if it did, how a single evaluation would be cut into micro-batches.
    free = {"eval_iters", "checkpoint_interval", "wandb_log", "wandb_project", "wandb_run_name"}
    without_decay = {"warmup_iters", "lr_decay_iters", "min_lr"}
    for name in CONFIGS:
        theirs = asdict(build_config(find_recipe(f"config/{name}.py"), {}))
        ours = asdict(build_config(find_recipe(f"elsewhere/{name}.py"), {}))
        differ = {key for key in ours if ours[key] != theirs[key]} - free
        if theirs["eval_only"]:
            differ -= without_decay | {"gradient_accumulation_steps"}
            assert ours["eval_iters"] == theirs["eval_iters"]
        if not theirs["decay_lr"]:
            differ -= without_decay
        assert differ == set(), name


def test_a_script_that_reads_nanogpts_output_reads_this(reader: Reader) -> None:
    reader.type("python data/shakespeare_char/prepare.py", "--source=../tiny.txt")
    code, out, err = reader.type(CHAR, *SMALL, *QUICK, "--eval_iters=2", "--console=nanogpt")
    assert code == 0, err
    assert [int(at) for at in re.findall(r"^iter (\d+): loss \d+\.\d{4}, time ", out, re.MULTILINE)] == [0, 2]
    assert [int(at) for at in re.findall(r"^step (\d+): train loss ", out, re.MULTILINE)] == [0, 2, 3]
    assert "saving checkpoint to out-shakespeare-char" in out.splitlines()
    assert os.listdir("out-shakespeare-char/checkpoints")
