"""Plans for many cards: DDP and FSDP, the advice, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from glassgpt.cli import main
from glassgpt.errors import UserError
from glassgpt.estimate.cards import resolve_card_name
from glassgpt.estimate.training_workload import total_parameters
from glassgpt.plan.dataset_info import known_dataset_info
from glassgpt.plan.estimates import ParallelismComparison
from glassgpt.plan.planning import Plan, make_plan
from glassgpt.plan.propose import propose
from glassgpt.plan.target import PlanTarget, target_of_card, with_cluster
from glassgpt.recipe import build_config, find_recipe

WEB = known_dataset_info("openwebtext")
XL = {"n_layer": 48, "n_embd": 1600, "n_head": 25, "batch_tokens": 524_288}


def cluster(name: str = "h100", gpus: int = 8, nodes: int = 1, network: float = 12.5) -> PlanTarget:
    return with_cluster(target_of_card(resolve_card_name(name).card, "asked for"), gpus, nodes, network)


def plan(target: PlanTarget, price: float | None = None, **settings: Any) -> Plan:
    return make_plan(build_config(find_recipe("gpt2_124m"), settings, "cuda"), target, WEB, price)


def parallelism(made: Plan) -> ParallelismComparison:
    assert made.parallelism is not None
    return made.parallelism


# --- speed ---


def test_eight_cards_are_eight_times_as_fast_less_the_communication() -> None:
    one, eight = (
        plan(cluster(gpus=gpus), batch_size=16, gradient_accumulation_steps=4 * gpus) for gpus in (1, 8)
    )
    assert one.parallelism is None
    assert one.times is not None
    assert eight.times is not None
    assert eight.spec.batch.micro_steps == 4
    communication_s = 2 * 7 / 8 * 4 * total_parameters(one.spec.workload) / (0.82 * 450e9)
    update = 16 * 4 * 1024 / one.times.throughput.mid + communication_s
    assert eight.times.throughput.mid == pytest.approx(8 * 16 * 4 * 1024 / update)
    assert parallelism(eight).ddp.waiting_s == pytest.approx(communication_s)
    # Compared with one card that takes the whole batch, and so updates less often.
    alone = plan(cluster(gpus=1), batch_size=16, gradient_accumulation_steps=32)
    assert alone.times is not None
    assert parallelism(eight).ddp.efficiency == pytest.approx(
        eight.times.throughput.mid / 8 / alone.times.throughput.mid
    )
    assert eight.times.updates_s[1] == pytest.approx(600_000 * update)


def test_a_slow_network_is_a_problem() -> None:
    slow, fast = (plan(cluster(nodes=4, network=network), batch_tokens=524_288) for network in (1.25, 400.0))
    assert slow.times is not None
    assert fast.times is not None
    assert slow.times.throughput.mid < fast.times.throughput.mid / 5
    assert any("communication" in problem.what and problem.kind == "warning" for problem in slow.problems)
    assert not any("communication" in problem.what for problem in fast.problems)


def test_cards_share_an_update_evenly() -> None:
    with pytest.raises(UserError, match=r"480 sequences cannot be shared evenly by 128 cards") as raised:
        plan(cluster(nodes=16))
    fix = int(str(raised.value).split("--batch_tokens=")[1].split()[0])
    made = plan(cluster(nodes=16), batch_tokens=fix)
    batch = made.spec.batch
    assert batch.batch_size * batch.micro_steps * 128 * 1024 == batch.tokens == fix


def test_energy_and_cost_of_all_machines() -> None:
    made = plan(cluster(nodes=4, network=50.0), price=20.0, batch_tokens=524_288)
    assert made.times is not None
    hours = made.times.total_s[1] / 3600
    assert made.times.cost == pytest.approx(4 * 20 * hours)
    assert made.times.kwh == pytest.approx(32 * 0.7 * hours)  # 700 W each


# --- DDP or FSDP ---


def test_ddp_is_advised_if_the_model_fits() -> None:
    comparison = parallelism(plan(cluster()))
    assert comparison.advised is comparison.ddp
    assert comparison.fsdp.memory_bytes < comparison.ddp.memory_bytes


def test_fsdp_is_advised_if_the_model_fits_only_sharded() -> None:
    with pytest.raises(UserError) as raised:
        plan(cluster("rtx4090"), **XL)
    assert any("--shard=True" in problem for problem in raised.value.problems)
    made = plan(cluster("rtx4090"), shard=True, **XL)
    comparison = parallelism(made)
    assert made.fits
    assert comparison.advised is comparison.fsdp
    assert not comparison.ddp.fits
    assert comparison.ddp.tokens_per_s is None  # no speed of what does not fit
    assert made.memory.total_bytes <= made.target.automatic_limit


def test_a_model_that_does_not_fit_even_sharded() -> None:
    with pytest.raises(UserError) as raised:
        plan(cluster("rtx4070", gpus=2), shard=True, **XL)
    assert "per card, sharded over 2" in raised.value.problems[0]


def test_sharding_one_card_is_a_problem() -> None:
    made = plan(cluster(gpus=1), shard=True)
    assert made.problems[-1].what.startswith("--shard=True ")


def test_sharding_without_need_is_a_problem() -> None:
    made = plan(cluster("rtx4090"), shard=True, batch_size=2, gradient_accumulation_steps=240)
    hint = next(problem for problem in made.problems if problem.what.startswith("DDP:"))
    assert hint.fix == "--shard=False"


def test_an_update_in_one_pass_is_proposed_if_it_fits() -> None:
    settings = {"n_layer": 24, "n_embd": 1024, "n_head": 16, "shard": True}
    made = plan(cluster(), batch_size=2, gradient_accumulation_steps=64, **settings)
    fix = next(problem.fix for problem in made.problems if "in one pass" in problem.what)
    assert fix == "--batch_size=16 --gradient_accumulation_steps=8"
    better = plan(cluster(), batch_size=16, gradient_accumulation_steps=8, **settings)
    assert better.fits
    assert parallelism(better).fsdp.sent_bytes < parallelism(made).fsdp.sent_bytes / 3


# --- proposals ---


@pytest.mark.parametrize("target", [cluster("rtx4090"), cluster(nodes=4, network=50.0)])
def test_a_proposal_for_many_cards_fits_and_takes_the_time(target: PlanTarget) -> None:
    config = build_config(find_recipe("gpt2_124m"), {}, "cuda")
    proposal = propose(config, target, WEB, 12.0, price=10.0)
    assert proposal.best.seconds <= 12 * 3600
    made = make_plan(proposal.best.config, target, WEB)
    assert made.fits
    errors = [problem.what for problem in made.problems if problem.kind == "error"]
    assert not errors
    assert made.times is not None
    assert made.times.total_s[1] == pytest.approx(proposal.best.seconds, rel=0.1)
    assert proposal.cost == pytest.approx(10 * target.cluster.machines * proposal.best.seconds / 3600)
    alone = propose(config, cluster(gpus=1), WEB, 12.0)
    assert proposal.best.loss[1] < alone.best.loss[1]


# --- the command ---


def test_the_assumptions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "gpt2_124m", "--gpu=h100", "--gpus=8", "--nodes", "16", "--batch_tokens=524288"]
    assert main(words) == 0
    output = " ".join(capsys.readouterr().out.split())
    for part in (
        "gpt2_124m on 16 x 8 x H100 SXM5", "128 cards, 8 in each of 16 machines", "NVLink 4: 450 GB/s",
        "12.5 GB/s per machine and direction (--network)", "DDP (--shard=False)", "FSDP (--shard=True)",
        "advised", "2 (n - 1) / n", "on each of 128 cards", "all cards' full power",
    ):  # fmt: skip
        assert part in output


def test_json_has_ddp_and_fsdp(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt2_124m", "--gpu=h100", "--gpus=8", "--json", "--price=2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [way["name"] for way in document["together"]["ways"]] == ["DDP", "FSDP"]
    assert document["together"]["link"]["name"] == "NVLink 4"
    assert document["together"]["network_gb_s"] is None
    assert document["together"]["assumptions"]
    assert "pace" in document["time"]
    assert "throughput" not in document["time"]
    assert "course" in document["prospect"]
    assert "loss_curve" not in document["prospect"]
    assert main(["plan", "gpt2_124m", "--gpu=h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["together"] is None


def test_bad_input(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--gpus=0"], "--gpus=0 must be greater than 0"),
        (["--gpus=-1", "--nodes=0"], "--nodes=0 must be greater than 0"),
        (["--nodes=2", "--network=0"], "--network=0 must be greater than 0"),
        (["--nodes=2", "--network=nan"], "--network=nan is not a finite number"),
        (["--gpus=2.5"], "--gpus=2.5"),
        (["--gpus=1025"], "--gpus=1025 is too large"),
        (["--network=5"], "--network=5 is between machines: it needs --nodes"),
        (["--gpus=7"], "cannot be shared evenly by 7 cards"),
        (["--gpus=2", "--n_layer=96", "--n_embd=12288", "--n_head=96", "--shard"], "needs at least"),
    ]
    for words, part in cases:
        with subtests.test(repr(words)):
            assert main(["plan", "gpt2_124m", "--gpu=h100", *words]) == 2
            assert part in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpu", "part"), [("m1", "cannot train in a cluster"), ("cpu", "a machine has one CPU")]
)
def test_what_cannot_train_together(gpu: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt2_124m", f"--gpu={gpu}", "--gpus=2"]) == 2
    assert part in capsys.readouterr().err


def test_cpus_of_several_machines_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "plan",
        "shakespeare_char_cpu",
        "--gpu=cpu",
        "--nodes=4",
        "--network=1.25",
        "--batch_tokens=1024",
    ]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert "4 machines; each sends" in output
    assert "each of 4 machines" in output
    assert "NCCL" not in output


def test_a_card_without_bfloat16_is_sharded_in_float32() -> None:
    """Training refuses FSDP with float16 and its loss scaler."""
    target = with_cluster(target_of_card(resolve_card_name("t4").card, "asked for"), 8, 1, 12.5)
    sharded = make_plan(build_config(find_recipe("gpt2_124m"), {"shard": True}, "cuda"), target, WEB)
    assert any(one.kind == "error" and "--dtype=float32" in one.fix for one in sharded.problems)
    made = make_plan(build_config(find_recipe("gpt2_124m"), {}, "cuda"), target, WEB)
    assert made.parallelism is not None
    assert made.parallelism.fsdp.setting == "--shard=True --dtype=float32"
    assert "shard=True" not in {variant.name for variant in made.variants}
    right = make_plan(
        build_config(find_recipe("gpt2_124m"), {"shard": True, "dtype": "float32"}, "cuda"), target, WEB
    )
    assert not any(one.kind == "error" for one in right.problems)
    assert right.memory.total_bytes == made.parallelism.fsdp.memory_bytes


def test_the_sharded_variant_is_not_compiled() -> None:
    target = with_cluster(target_of_card(resolve_card_name("rtx3060").card, "asked for"), 8, 1, 12.5)
    settings: dict[str, Any] = {"kernels": "plain", "activation_checkpointing": True}
    config = build_config(find_recipe("gpt2_124m"), settings, "cuda")
    made = make_plan(config, target, WEB)
    assert made.spec.workload.compiled
    (largest,) = (variant.largest for variant in made.variants if variant.name == "shard=True")
    assert largest is not None
    steps = 8 * made.spec.batch.micro_steps
    sized = {"shard": True, "batch_size": largest, "gradient_accumulation_steps": steps}
    assert make_plan(build_config(find_recipe("gpt2_124m"), settings | sized, "cuda"), target, WEB).fits
