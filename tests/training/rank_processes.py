"""Real ranks for tests: processes forked from one that has imported everything and computed nothing.

They use gloo, through a store that the test hosts, as torchrun would. Each runs `glass` with the same
arguments, unless a test gives others; its output goes to a file.
"""

from __future__ import annotations

import importlib
import itertools
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from glassgpt.config import TrainConfig
from glassgpt.recipe import to_toml

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [
        "glassgpt.cli",
        "glassgpt.training.session",
        "glassgpt.training.distributed.torch_group",
        "glassgpt.show.page.report_listener",
        "glassgpt.show.terminal.run_console",
        "torch.distributed.fsdp",
        "torch._dynamo",  # which sharding imports
    ]
)
_numbers = itertools.count()
_stores: list[TCPStore] = []


@dataclass
class RankProcess:
    """The process of one rank."""

    process: BaseProcess
    output: Path

    @property
    def output_text(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def wait(self, limit_s: float = 60.0) -> int:
        self.process.join(limit_s)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"still running after {limit_s} s:\n{self.output_text}")
        return self.process.exitcode

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


def start_ranks(
    size: int,
    folder: Path,
    arguments: Callable[[int], Sequence[str]] | Sequence[str],
    sabotage: Mapping[int, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[RankProcess]:
    """`arguments`: of `glass`, maybe by rank. `sabotage`: by rank, a function of this module."""
    number = next(_numbers)
    # As torchrun does: the store outlives the processes, whichever of them dies.
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    _stores.append(store)
    ranks = []
    for rank in range(size):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": f"test-{number}",
        } | dict(environment or {})
        output = folder / f"group-{number}-rank-{rank}.txt"
        rank_arguments = list(arguments(rank) if callable(arguments) else arguments)
        process = _server.Process(
            target=_rank_main, args=(variables, rank_arguments, str(output), (sabotage or {}).get(rank, ""))
        )
        process.start()
        ranks.append(RankProcess(process, output))
    return ranks


def run_ranks(size: int, folder: Path, arguments: Any, **more: Any) -> list[RankProcess]:
    """Ranks that have ended with exit code 0."""
    ranks = start_ranks(size, folder, arguments, **more)
    exit_codes = [rank.wait() for rank in ranks]
    assert exit_codes == [0] * size, "\n".join(rank.output_text for rank in ranks)
    return ranks


def config_file(config: TrainConfig) -> str:
    """Its path, for a command line."""
    path = Path(config.out_dir).with_suffix(".toml")
    path.write_text(to_toml(config))
    return str(path)


def train_command(config: TrainConfig, **changes: Any) -> list[str]:
    return ["train", config_file(config), *(f"--{name}={value}" for name, value in changes.items())]


def resume_command(out_dir: Path | str, **changes: Any) -> list[str]:
    flags = (f"--{name}={value}" for name, value in changes.items())
    return ["train", "--init_from=resume", f"--out_dir={out_dir}", *flags]


def _rank_main(environment: dict[str, str], arguments: list[str], output: str, sabotage: str) -> None:
    """Never returns."""
    signal.alarm(120)  # should the test die
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    import torch

    from glassgpt.cli import main

    torch.set_num_threads(1)
    if sabotage:
        globals()[sabotage]()
    code = main(arguments)
    sys.stdout.flush()
    os._exit(code)


# --- sabotage ---


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _wrap_method(owner: Any, name: str, changed: Callable[..., Any]) -> None:
    """`changed` is given the original before the arguments."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *arguments: changed(original, *arguments))


def die_in_update_7() -> None:
    """Half-way: after its micro-batch, before the all-reduce of its gradients. First it waits for the last
    checkpoint, which is written in the background: on a busy machine that takes longer than an update."""
    from glassgpt.training.learner import Learner

    def micro_step(original: Any, learner: Any, *batch: Any) -> Any:
        result = original(learner, *batch)
        if learner._dropout_key[0] == 7:
            last = 7 // learner.config.checkpoint_interval * learner.config.checkpoint_interval
            saved = Path(learner.config.out_dir, "checkpoints", f"{last:08d}")
            deadline = time.monotonic() + 30
            while not saved.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            _die()
        return result

    _wrap_method(Learner, "_micro_step", micro_step)


def die_in_second_save() -> None:
    """With a file half written."""
    from glassgpt.training.checkpoint.saver import Saver

    def write_files(original: Any, saver: Any, folder: Path, snapshot: Any) -> Any:
        if saver._saves == 2:
            (folder / "model-torn.safetensors").write_bytes(b"half")
            _die()
        return original(saver, folder, snapshot)

    _wrap_method(Saver, "_write_files", write_files)


def fail_to_write() -> None:
    from glassgpt.training.checkpoint.saver import Saver

    def write_files(original: Any, saver: Any, folder: Path, snapshot: Any) -> Any:
        raise OSError(28, "No space left on device")

    _wrap_method(Saver, "_write_files", write_files)


def hang_in_data() -> None:
    """Update 4 never gets its batch; the process lives."""
    from glassgpt.training.loader import BatchLoader

    calls = itertools.count()

    def micro_batch(original: Any, stream: Any, *where: int) -> Any:
        if next(calls) >= 8:
            threading.Event().wait()
        return original(stream, *where)

    _wrap_method(BatchLoader, "micro_batch", micro_batch)


def lose_a_gradient() -> None:
    """Update 3 has a NaN gradient, on this rank only."""
    from glassgpt.training.distributed.fsdp import local_shard
    from glassgpt.training.learner import Learner

    def micro_step(original: Any, learner: Any, *batch: Any) -> Any:
        result = original(learner, *batch)
        gradient = next(learner.model.parameters()).grad
        # Sharded gradients exist at the last micro-step only.
        if learner._dropout_key[0] == 3 and gradient is not None:
            local_shard(gradient).fill_(math.nan)
        return result

    _wrap_method(Learner, "_micro_step", micro_step)


def crash_in_update_5() -> None:
    from glassgpt.training.learner import Learner

    def update(original: Any, learner: Any, number: int, first: int) -> Any:
        if number == 5:
            raise ZeroDivisionError("a bug")
        return original(learner, number, first)

    _wrap_method(Learner, "update", update)


def use_small_buckets() -> None:
    """The gradients of a tiny model would fit into one."""
    from glassgpt.training.distributed import gradient_all_reduce

    gradient_all_reduce.ALL_REDUCE_BUCKET_BYTES = 2048  # type: ignore[attr-defined]


def reduce_after_backward() -> None:
    """In the same buckets, but nothing overlaps."""
    from glassgpt.training.distributed.gradient_all_reduce import GradientAllReduce

    use_small_buckets()
    GradientAllReduce.start_in_backward = lambda self: None  # type: ignore[method-assign]


def tune_to_two() -> None:
    """Tuning chooses batch_size=2; only rank 0 may measure."""
    command = importlib.import_module(
        "glassgpt.cli.train_command"
    )  # the module; its name is also a function's

    def measure(request: Any, *_: Any) -> Any:
        assert os.environ["RANK"] == "0"
        config = replace(request.config, batch_size=2, gradient_accumulation_steps=4)
        return {"config": asdict(config), "seconds": 0.0}

    command._measure_fastest_config = measure  # type: ignore[attr-defined]


def be_slow() -> None:
    from glassgpt.training.learner import Learner

    def micro_step(original: Any, learner: Any, *batch: Any) -> Any:
        time.sleep(0.02)
        return original(learner, *batch)

    _wrap_method(Learner, "_micro_step", micro_step)


def look_slowly() -> None:
    """The profiler takes long to begin, which is part of the first profiled update."""
    from glassgpt.training.profiler import UpdateProfiler

    def start(original: Any, profiler: Any, done: int) -> None:
        time.sleep(1.0)
        original(profiler, done)

    be_slow()
    _wrap_method(UpdateProfiler, "_start", start)


def trace_slowly() -> None:
    """Writing the trace takes long; only this rank writes one."""
    from glassgpt.training.profiler import UpdateProfiler

    def slow_record(original: Any, profiling: Any, *when: Any) -> Any:
        record = original(profiling, *when)
        time.sleep(1.0 if record else 0.0)
        return record

    be_slow()
    _wrap_method(UpdateProfiler, "stop_if_due", slow_record)


def copy_slowly() -> None:
    """The blocking part of a save takes long."""
    from glassgpt.training.checkpoint.saver import Saver

    def snapshot(original: Any, saver: Any, tensors: Any) -> Any:
        time.sleep(0.2)
        return original(saver, tensors)

    be_slow()
    _wrap_method(Saver, "_snapshot", snapshot)


def compile_once() -> None:
    """The compiled model works, but must not be called a second time: another rank could not compile it."""
    import torch

    def compiled(hidden: Any, **_: Any) -> Any:
        calls = itertools.count()

        def call(tokens: Any) -> Any:
            if next(calls):
                raise ZeroDivisionError("compiled code was called again")
            return hidden(tokens)

        return call

    torch.compile = compiled  # type: ignore[assignment]


def compile_in_vain() -> None:
    """Fails in the first call, as torch.compile does, and after the forward pass."""
    import torch

    def compiled(hidden: Any, **_: Any) -> Any:
        def call(tokens: Any) -> Any:
            hidden(tokens)
            raise RuntimeError("the compiler fell over\nand a long trace")

        return call

    torch.compile = compiled  # type: ignore[assignment]


def read_slowly() -> None:
    """Reading the dataset takes longer than --rank_timeout."""
    from glassgpt.training.loader import BatchLoader

    def make(original: Any, *arguments: Any) -> None:
        time.sleep(3.5)
        original(*arguments)

    _wrap_method(BatchLoader, "__init__", make)


def write_slowly() -> None:
    """Writing a checkpoint takes longer than --rank_timeout."""
    from glassgpt.training.checkpoint.saver import Saver

    def write_files(original: Any, *arguments: Any) -> Any:
        time.sleep(3.5)
        return original(*arguments)

    _wrap_method(Saver, "_write_files", write_files)


def lack_the_table() -> None:
    """Of the tokenizer: on this machine the dataset was not prepared."""
    from glassgpt.errors import UserError
    from glassgpt.training import setup

    def dataset_tokenizer(original: Any, dataset: Any) -> Any:
        raise UserError("no table here")

    _wrap_method(setup, "dataset_tokenizer", dataset_tokenizer)


def move_the_folder() -> None:
    """Before update 7, when the checkpoint of update 5 exists."""
    from glassgpt.training.checkpoint.checkpoints import committed_paths
    from glassgpt.training.checkpoint.saver import Saver
    from glassgpt.training.learner import Learner

    run_dirs: list[Path] = []

    def make(original: Any, saver: Any, run_dir: Path, *more: Any) -> None:
        run_dirs.append(run_dir)
        original(saver, run_dir, *more)

    def update(original: Any, learner: Any, number: int, first: int) -> Any:
        while number == 7 and not committed_paths(run_dirs[0]):
            time.sleep(0.01)
        if number == 7:
            run_dirs[0].rename(run_dirs[0].with_name("elsewhere"))
        return original(learner, number, first)

    _wrap_method(Saver, "__init__", make)
    _wrap_method(Learner, "update", update)
