"""Several ranks train what one process trains: same losses, evaluations and files, whatever their number.

With gloo on a CPU, in real processes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rank_processes
import torch
import torch.distributed as dist
from tiny import (
    MakeConfig,
    assert_close_tensors,
    assert_same_tensors,
    choices,
    file_contents,
    last_tensors,
    records,
    run_evals,
    run_losses,
)
from torch.nn import Parameter

from glassgpt.config import TrainConfig
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.record import journal
from glassgpt.training.checkpoint.checkpoints import committed_paths, load_latest_intact, read_checkpoint
from glassgpt.training.device import device_for_rank
from glassgpt.training.distributed import gradient_all_reduce, join
from glassgpt.training.distributed.fsdp import rows_of_rank
from glassgpt.training.distributed.gradient_all_reduce import GradientAllReduce, _gradient, make_buckets
from glassgpt.training.distributed.process_group import ProcessGroup
from glassgpt.training.distributed.torch_group import choose_backend, describe_mismatches
from glassgpt.training.interrupt import StopSignals
from glassgpt.training.run_request import restarted_request
from glassgpt.training.session import train

# Twelve sequences an update, which one, two and four processes share in micro-batches of three.
SHARED: dict[str, Any] = {"batch_size": 3, "gradient_accumulation_steps": 4, "max_iters": 12}


def assert_same_losses(one: str, other: str, tolerance: float = 1e-5) -> None:
    assert run_losses(other) == pytest.approx(run_losses(one), abs=tolerance)
    assert run_evals(other) == pytest.approx(run_evals(one), abs=tolerance)


# --- the same as one process ---


@pytest.mark.parametrize(
    ("optimizer", "ways"), [("adamw", ((4, False), (2, True))), ("muon", ((2, False), (4, True)))]
)
def test_several_ranks_train_what_one_process_trains(
    tiny: MakeConfig, tmp_path: Path, optimizer: str, ways: tuple[tuple[int, bool], ...]
) -> None:
    settings = SHARED | {"optimizer": optimizer, "arch": "modern" if optimizer == "muon" else "gpt2"}
    one = tiny("one", **settings)
    train(one)
    weights = last_tensors(one.out_dir)["model"]
    assert weights.keys()
    for size, shard in ways:
        config = tiny(f"{size}-{shard}", shard=shard, **settings)
        rank_processes.run_ranks(size, tmp_path, rank_processes.train_command(config))
        assert len(run_losses(config.out_dir)) == 12
        assert_same_losses(one.out_dir, config.out_dir)
        assert_close_tensors(last_tensors(config.out_dir)["model"], weights, 2e-4)


def test_masks_belong_to_micro_batches_not_to_processes(tiny: MakeConfig, tmp_path: Path) -> None:
    settings = SHARED | {"dropout": 0.3}
    train(tiny("one", **settings))
    for size in (2, 4):
        rank_processes.run_ranks(
            size, tmp_path, rank_processes.train_command(tiny(f"ranks-{size}", **settings))
        )
        assert_same_losses(tiny("one").out_dir, tiny(f"ranks-{size}").out_dir)
    train(tiny("dry", **SHARED))
    assert run_losses(tiny("dry").out_dir) != pytest.approx(run_losses(tiny("one").out_dir), abs=1e-3)


def test_an_evaluation_is_the_same_to_the_last_bit(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny(**SHARED)
    train(config)
    for size, shard in ((2, False), (4, False), (3, True)):
        rank_processes.run_ranks(
            size, tmp_path, rank_processes.resume_command(config.out_dir, eval_only=True, shard=shard)
        )
    evals = [
        record
        for record in journal.read(Path(config.out_dir) / journal.FILE_NAME)
        if record["kind"] == "eval"
    ]
    last = [record for record in evals if record["iter"] == 12]
    assert len(last) == 2 * 4
    for split in ("train", "val"):
        values = [(r["loss"], r["stderr"], r["tokens"]) for r in last if r["split"] == split]
        assert values == [values[0]] * 4


# --- resuming ---


@pytest.mark.parametrize("shard", [False, True])
def test_a_run_resumes_with_another_number_of_ranks(tiny: MakeConfig, tmp_path: Path, shard: bool) -> None:
    """And, in the same number, to the last bit."""
    settings = SHARED | {"max_iters": 8, "eval_interval": 4, "dropout": 0.1, "shard": shard}
    before = 2 if shard else 4
    whole, half = tiny("whole", **settings), tiny("half", **settings | {"max_iters": 4, "lr_decay_iters": 8})
    for config in (whole, half):
        rank_processes.run_ranks(before, tmp_path, rank_processes.train_command(config))
    for size in (1, 2, 4):
        config = tiny(f"on-{size}")
        shutil.copytree(half.out_dir, config.out_dir)
        rank_processes.run_ranks(size, tmp_path, rank_processes.resume_command(config.out_dir, max_iters=8))
        assert choices(config.out_dir)["ranks"][0] == size
        assert_same_losses(whole.out_dir, config.out_dir)
        if size == before:
            assert run_losses(config.out_dir) == run_losses(whole.out_dir)
            assert_same_tensors(last_tensors(config.out_dir), last_tensors(whole.out_dir))


def test_all_reduce_that_overlaps_changes_no_bit(tiny: MakeConfig, tmp_path: Path) -> None:
    """Four ranks sum an element in an order that depends on its place in a bucket. It is the same in a
    resumed run, and if nothing overlaps; so it is for an optimizer that sees views into the buckets."""
    settings = SHARED | {
        "gradient_accumulation_steps": 8, "max_iters": 6, "lr_decay_iters": 6, "eval_interval": 3,
    }  # fmt: skip
    whole, apart, half = (
        tiny(name, **settings | {"max_iters": iters})
        for name, iters in (("whole", 6), ("apart", 6), ("half", 3))
    )
    small = dict.fromkeys(range(4), "use_small_buckets")
    sequential = dict.fromkeys(range(4), "reduce_after_backward")
    for config, sabotage in ((whole, small), (apart, sequential), (half, small)):
        rank_processes.run_ranks(4, tmp_path, rank_processes.train_command(config), sabotage=sabotage)
    resume = rank_processes.resume_command(half.out_dir, max_iters=6)
    rank_processes.run_ranks(4, tmp_path, resume, sabotage=small)
    one = tiny("one", **settings)
    train(one)
    assert_same_losses(one.out_dir, whole.out_dir)
    for config in (apart, half):
        assert run_losses(config.out_dir) == run_losses(whole.out_dir)
        assert_same_tensors(last_tensors(config.out_dir), last_tensors(whole.out_dir))


def test_from_several_ranks_to_one_process_and_back(tiny: MakeConfig, tmp_path: Path) -> None:
    from glassgpt.training.session import resume

    settings = SHARED | {"gradient_accumulation_steps": None, "batch_size": 6, "lr_decay_iters": 12}
    config = tiny(**settings | {"max_iters": 4})
    rank_processes.run_ranks(2, tmp_path, rank_processes.train_command(config))
    resume(config.out_dir, max_iters=8)
    (batch,) = {json.dumps(record["batch"]["tokens"]) for record in records(config.out_dir, "run")}
    assert batch == str(12 * 8)  # what no flag changes stays the same
    rank_processes.run_ranks(4, tmp_path, rank_processes.resume_command(config.out_dir, max_iters=12))
    assert choices(config.out_dir)["batch_size"][0] == 3
    straight = tiny("straight", **settings | {"gradient_accumulation_steps": 2})
    train(straight)
    assert run_losses(config.out_dir) == pytest.approx(run_losses(straight.out_dir), abs=1e-5)


def test_several_ranks_leave_a_finished_run_alone(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny(max_iters=2)
    train(config)
    before = file_contents(config.out_dir)
    first, second = rank_processes.run_ranks(2, tmp_path, rank_processes.resume_command(config.out_dir))
    assert len(first.output_text.splitlines()) == 1
    assert second.output_text == ""
    assert file_contents(config.out_dir) == before


def test_a_damaged_checkpoint_is_set_aside_once(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny(**SHARED | {"max_iters": 4, "eval_interval": 2, "keep_checkpoints": 2})
    rank_processes.run_ranks(2, tmp_path, rank_processes.train_command(config))
    before, last = committed_paths(Path(config.out_dir))
    (last / "model.safetensors").write_bytes(b"nothing")
    (first, _) = rank_processes.run_ranks(
        2, tmp_path, rank_processes.resume_command(config.out_dir, max_iters=6)
    )
    assert (
        f"{last} is damaged" in first.output_text
        or f"{last}/model.safetensors is damaged" in first.output_text
    )
    assert records(config.out_dir, "resume")[-1]["from_iter"] == 2
    assert (last.parent / f"damaged-{last.name}").is_dir()
    assert before.exists() or run_losses(config.out_dir).keys() == set(range(1, 7))


def test_measuring_is_done_once_and_holds_for_all(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny(**SHARED | {"batch_size": 4, "gradient_accumulation_steps": 2, "max_iters": 2})
    sabotage = dict.fromkeys(range(2), "tune_to_two")
    rank_processes.run_ranks(
        2, tmp_path, [*rank_processes.train_command(config), "--tune"], sabotage=sabotage
    )
    batch = records(config.out_dir, "run")[0]["batch"]
    assert (batch["batch_size"], batch["micro_steps"], batch["sequences"]) == (2, 2, 8)


# --- what is written ---


def test_one_process_writes_one_journal_that_says_how_the_work_was_shared(
    tiny: MakeConfig, tmp_path: Path
) -> None:
    config = tiny(**SHARED, log_interval=4, sample_tokens=5)
    first, second = rank_processes.run_ranks(
        2, tmp_path, rank_processes.train_command(config), sabotage={1: "be_slow"}
    )
    assert "iter " in first.output_text
    assert second.output_text == ""
    (run,) = records(config.out_dir, "run")
    assert run["team"] | {"launch": "?"} == {
        "size": 2, "per_machine": 2, "backend": "gloo", "shard": False, "launch": "?", "attempt": 0,
    }  # fmt: skip
    reasons = choices(config.out_dir)
    assert (reasons["ranks"][0], "launcher" in reasons["ranks"][1]) == (2, True)
    assert reasons["backend"] == ("gloo", "between CPUs")
    steps = records(config.out_dir, "step")
    assert [step["iter"] for step in steps] == [4, 8, 12]
    for step in steps:
        shared = step["ranks"]
        assert shared["slowest"] == 1
        assert all(10**7 < memory < 10**10 for memory in shared["memory"])
        for work, exchange in zip(shared["work_ms"], shared["exchange_ms"], strict=True):
            assert 0 < work + exchange < 1.5 * step["step_ms"]
        assert shared["work_ms"][1] > 35  # two micro-batches of 20 ms
        assert shared["exchange_ms"][0] > shared["exchange_ms"][1]  # the fast one waits
    (end,) = records(config.out_dir, "end")
    assert end["ranks"]["slowest"] == 1
    assert 0.3 < end["ranks"]["efficiency"] < 0.9
    assert end["ranks"]["waiting"] > 0.2
    assert sum(end["ledger"].values()) == pytest.approx(end["wall_s"])
    assert "the slowest, rank 1" in first.output_text
    assert f"--out_dir={config.out_dir} --nproc=2 --max_iters=24" in first.output_text
    (finding,) = (record for record in records(config.out_dir, "finding") if record["id"] == "straggler")
    assert finding["values"] == {"rank": 1, "waiting_share": end["ranks"]["waiting"]}
    assert len(records(config.out_dir, "sample")) == 1


@pytest.mark.parametrize("sabotage", ["look_slowly", "trace_slowly"])
def test_profiling_is_not_counted_as_all_reduce(tiny: MakeConfig, tmp_path: Path, sabotage: str) -> None:
    """It costs rank 0 a second that rank 1 has not: in no number of time by rank."""
    config = tiny(**SHARED, log_interval=4, profile="5:7")
    rank_processes.run_ranks(
        2, tmp_path, rank_processes.train_command(config), sabotage={0: sabotage, 1: "be_slow"}
    )
    steps = records(config.out_dir, "step")
    assert [step["iter"] for step in steps] == [4, 8, 12]
    for step in steps:
        assert step["ranks"]["work_ms"][1] > 35  # two micro-batches of 20 ms
        assert max(step["ranks"]["exchange_ms"]) < 250
    assert len(records(config.out_dir, "profile")) == 1


def test_a_save_is_not_counted_as_all_reduce(tiny: MakeConfig, tmp_path: Path) -> None:
    """Rank 0 is held up by it, and rank 1 waits for that in phase `checkpoint`."""
    config = tiny(**SHARED, log_interval=4, checkpoint_interval=1)
    rank_processes.run_ranks(
        2, tmp_path, rank_processes.train_command(config), sabotage={0: "copy_slowly", 1: "be_slow"}
    )
    for step in records(config.out_dir, "step"):
        assert step["ranks"]["exchange_ms"][1] < 100


def test_a_sharded_run_writes_rows_and_an_index(tiny: MakeConfig, tmp_path: Path) -> None:
    """Reading merges them; and a damaged file is named."""
    config = tiny(**SHARED, shard=True, n_embd=12, sample_tokens=4)
    plain = dataclasses.replace(config, out_dir=str(tmp_path / "plain"), shard=False)
    rank_processes.run_ranks(4, tmp_path, rank_processes.train_command(config))
    train(plain)
    (path,) = committed_paths(Path(config.out_dir))
    files = {file.name for file in path.iterdir()}
    assert {f"model-0000{n}-of-00004.safetensors" for n in (1, 2, 3, 4)} < files
    assert all(name.endswith((".safetensors", ".json")) for name in files)
    assert read_checkpoint(path).state["index"]["model-00002-of-00004"]["transformer.wpe.weight"] == [2, 4, 8]
    whole, expected = last_tensors(config.out_dir), last_tensors(plain.out_dir)
    assert whole.keys() == expected.keys()
    for file in whole:
        assert_close_tensors(whole[file], expected[file], 2e-4)
    texts = {records(one.out_dir, "sample")[0]["text"] for one in (config, plain)}
    assert len(texts) == 1
    broken = path / "optimizer-00003-of-00004.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"optimizer-00003-of-00004\.safetensors is damaged"):
        load_latest_intact(Path(config.out_dir))


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_rank_decides_whether_there_is_a_sample(
    tiny: MakeConfig, tmp_path: Path, rank: int
) -> None:
    """A sharded model is gathered for it by all ranks, or by none."""
    config = tiny(**SHARED | {"max_iters": 2}, shard=True, sample_tokens=4, rank_timeout=10)
    rank_processes.run_ranks(
        2, tmp_path, rank_processes.train_command(config), sabotage={rank: "lack_the_table"}
    )
    assert len(records(config.out_dir, "sample")) == rank
    assert ("sample_tokens" in choices(config.out_dir)) == (rank == 0)


def test_rows_are_cut_as_torch_cuts_them(subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, int]] = [(16, 4), (10, 4), (3, 4), (1, 2), (7, 1), (9, 8)]
    for rows, ranks in cases:
        with subtests.test(f"{rows} rows, {ranks} ranks"):
            parts = list(torch.arange(rows).chunk(ranks))
            for rank in range(ranks):
                start, end = rows_of_rank(rank, ranks, rows)
                expected = parts[rank].tolist() if rank < len(parts) else []
                assert list(range(start, end)) == expected


# --- agreeing ---


def test_ranks_that_disagree_name_the_setting_and_write_nothing(
    tiny: MakeConfig, tmp_path: Path, tiny_data: Path
) -> None:
    config = tiny()
    other = tmp_path / "other"
    text = (tiny_data.parent / "tiny.txt").read_text()
    (tmp_path / "other.txt").write_text(text[500:] + text[:500])
    prepare(
        PrepareOptions(str(tmp_path / "other.txt"), out_dir=str(other)), lambda line: None, progress=False
    )
    words = rank_processes.train_command(config)
    by_rank = [words, [*words, "--learning_rate=0.5", "--seed=2", f"--data_dir={other}"]]
    first, second = rank_processes.start_ranks(2, tmp_path, lambda rank: by_rank[rank])
    assert (first.wait(), second.wait()) in ((2, 2), (2, -15))
    assert (
        "error: rank 1 has --learning_rate=0.5, rank 0 has --learning_rate=0.01: start all"
        in first.output_text
    )
    assert "error: rank 1 has --seed=2, rank 0 has --seed=1337" in first.output_text
    assert "rank 1 has the data's hash=" in first.output_text
    assert second.output_text == ""
    assert not Path(config.out_dir).exists()


def test_an_error_of_one_rank_ends_all_and_is_printed_once(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny()
    words = rank_processes.train_command(config)
    for by_rank, expected in (
        ([words, [*words, "--data_dir=/nowhere"]], "error: rank 1: no dataset at /nowhere"),
        ([[*words, "--data_dir=/nowhere"]] * 2, "error: no dataset at /nowhere"),
        ([words, [*words, "--n_layer=two"]], "error: rank 1: --n_layer=two"),
    ):
        first, second = rank_processes.start_ranks(2, tmp_path, lambda rank, by_rank=by_rank: by_rank[rank])  # type: ignore[misc]
        assert first.wait() == 2
        assert second.wait() in (2, -15)
        assert first.output_text.startswith(expected)
        assert first.output_text.count("error") == 1
        assert second.output_text == ""
        assert not Path(config.out_dir).exists()


def test_what_one_rank_cannot_compile_no_rank_compiles(tiny: MakeConfig, tmp_path: Path) -> None:
    settings = SHARED | {"max_iters": 4}
    train(tiny("one", **settings))
    config = tiny("ranks", compile="on", **settings)
    sabotage = {0: "compile_once", 1: "compile_in_vain"}
    rank_processes.run_ranks(2, tmp_path, rank_processes.train_command(config), sabotage=sabotage)
    assert_same_losses(tiny("one").out_dir, config.out_dir)
    (finding,) = (record for record in records(config.out_dir, "finding") if record["id"] == "compile-failed")
    assert finding["evidence"] == "rank 1: RuntimeError: the compiler fell over"


def test_a_sharded_model_that_one_rank_cannot_compile_ends_the_run(tiny: MakeConfig, tmp_path: Path) -> None:
    """If it computed again, it would wait for weights that the others do not gather again."""
    config = tiny(**SHARED, compile="on", shard=True, rank_timeout=20)
    sabotage = {0: "compile_once", 1: "compile_in_vain"}
    first, second = rank_processes.start_ranks(
        2, tmp_path, rank_processes.train_command(config), sabotage=sabotage
    )
    assert (first.wait(), second.wait()) == (1, 2)
    message = "rank 1 could not build code for the model (RuntimeError: the compiler fell over), and with"
    assert f"error: {message}" in second.output_text
    assert f"error: rank 1 has ended: UserError: {message}" in first.output_text
    assert "try --compile=off" in first.output_text


def test_differences_name_rank_and_setting() -> None:
    assert describe_mismatches({"--seed": 1, "torch": "2"}, {"--seed": 1, "torch": "2"}, 3) == []
    (message,) = describe_mismatches({"--seed": 1}, {"--seed": 1, "--shard": True}, 3)
    assert message.startswith("rank 3 has --shard=True, rank 0 has --shard=None: start all")


@pytest.fixture
def gloo_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("fixed_addresses", [False, True])
def test_buckets_are_sent_in_order_as_soon_as_they_are_complete(
    gloo_of_one: None, fixed_addresses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a tied model whose gradients are accumulated; the loss is averaged with them."""
    monkeypatch.setattr(gradient_all_reduce, "ALL_REDUCE_BUCKET_BYTES", 2048)
    model = GPT(GPTConfig(vocab_size=20, block_size=8, n_layer=3, n_head=2, n_embd=16))
    parameters = list(model.parameters())
    tokens = torch.arange(16).view(2, 8)
    loss = model(tokens, tokens)
    torch.autograd.backward(2 * loss, inputs=parameters)
    expected, losses = [parameter.grad for parameter in parameters], loss.detach().clone()
    model.zero_grad()
    all_reduce = GradientAllReduce(parameters, 2, fixed_addresses)  # "two": so means are half of the sums
    model(tokens, tokens).backward()
    addresses = [gradient.data_ptr() for gradient in map(_gradient, parameters)]
    assert all_reduce._in_flight == []
    all_reduce.start_in_backward()
    in_flight: list[int] = []
    model.transformer.h[0].register_full_backward_hook(
        lambda *_: in_flight.append(len(all_reduce._in_flight))
    )
    (3 * model(tokens, tokens)).backward()
    # When the first block is done, only its own last bucket and that of the embeddings may be missing.
    buckets = len(all_reduce._buckets)
    assert buckets > 10
    assert buckets - 3 <= in_flight[0] < buckets == len(all_reduce._in_flight)
    all_reduce.finish(losses)
    torch.testing.assert_close([parameter.grad for parameter in parameters], expected)
    assert losses == loss.detach() / 2
    if fixed_addresses:
        assert [gradient.data_ptr() for gradient in map(_gradient, parameters)] == addresses
    all_reduce.finish(losses)  # no backward pass has started them
    torch.testing.assert_close([2 * gradient for gradient in map(_gradient, parameters)], expected)


def test_gradients_are_all_reduced_in_buckets_of_a_fixed_layout() -> None:
    tensors = [torch.zeros(n) for n in (3, 3, 1, 9, 1)] + [torch.zeros(2, dtype=torch.float64)]
    parameters = [Parameter(tensor) for tensor in tensors]
    assert [[len(t) for t in bucket] for bucket in make_buckets(parameters, 28)] == [[3, 3, 1], [9], [1], [2]]
    assert list(make_buckets([], 28)) == []


def test_the_backend_fits_the_device_unless_one_is_requested() -> None:
    assert choose_backend("", "cpu") == ("gloo", "between CPUs")
    assert choose_backend("gloo", "cuda") == ("gloo", "asked for")
    assert choose_backend("nccl", "cpu") == ("gloo", "nccl was asked for, but it is for CUDA cards")
    for requested, device, expected in (
        ("", "mps", "cannot share --device=mps"),
        ("mpi", "cpu", "not one of nccl, gloo"),
    ):
        with pytest.raises(UserError, match=expected):
            choose_backend(requested, device)


def test_every_rank_has_its_own_card(card: Any) -> None:
    card(9, 0, count=2)
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert device_for_rank(cuda, "auto", 1, 2) == torch.device("cuda:1")
    assert device_for_rank(torch.device("cuda:1"), "cuda:1", 0, 1) == torch.device("cuda:1")
    assert device_for_rank(cpu, "auto", 3, 4) == cpu
    with pytest.raises(UserError) as caught:
        device_for_rank(torch.device("cuda:1"), "cuda:1", 0, 4)
    assert len(caught.value.problems) == 2


# --- a group of one ---


def test_in_a_group_of_one_collectives_are_no_ops(tmp_path: Path) -> None:
    group = join()
    assert type(group) is ProcessGroup
    assert group.is_rank_zero
    assert group.broadcast_from_rank_zero(lambda: 3) == 3
    assert group.all_gather_rows([1.0, 2.0]) == [[1.0, 2.0]]
    assert group.connect(torch.device("cpu"), TrainConfig()) == []
    (choice,) = group.connect(torch.device("cpu"), TrainConfig(backend="nccl"))
    assert "not used" in choice.reason
    assert restarted_request(group, str(tmp_path), {}) is None
    with StopSignals() as stop:
        os.kill(os.getpid(), 1)  # SIGHUP
        assert stop.sighup_received
        group.sync_stop_signals(stop)
        assert not stop.stop_requested


def test_sharding_a_group_of_one_does_nothing(tiny: MakeConfig) -> None:
    train(tiny("plain", max_iters=3))
    train(tiny("shard", max_iters=3, shard=True))
    value, reason = choices(tiny("shard").out_dir)["shard"]
    assert (value, "one process" in reason) == (False, True)
    assert run_losses(tiny("shard").out_dir) == run_losses(tiny("plain").out_dir)
