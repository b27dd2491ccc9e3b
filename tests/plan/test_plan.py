"""Plans (memory, time, loss, problems) and proposals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassgpt.config import TrainConfig
from glassgpt.data import prepare_options
from glassgpt.data.manifest import DatasetInfo, Manifest, write_manifest
from glassgpt.errors import UserError
from glassgpt.estimate.cards import resolve_card_name
from glassgpt.estimate.decide import choose_dtype
from glassgpt.estimate.memory import GIB, estimate_memory
from glassgpt.plan.dataset_info import find_dataset_info
from glassgpt.plan.planning import Plan, make_plan
from glassgpt.plan.propose import propose
from glassgpt.plan.target import PlanTarget, target_of_card, with_cluster
from glassgpt.recipe import build_config, find_recipe

RTX4070 = target_of_card(resolve_card_name("rtx4070").card, "asked for")
H200 = target_of_card(resolve_card_name("h200").card, "asked for")
WEB = DatasetInfo("openwebtext", 9_035_582_198, 4_434_897, 50257, "gpt2", 4.3, "as known")
CHARACTERS = DatasetInfo("shakespeare_char", 1_003_854, 111_540, 65, "char", 1.0, "as known")


def plan(
    preset: str = "gpt2_124m", target: PlanTarget = RTX4070, dataset: DatasetInfo = WEB, **settings: Any
) -> Plan:
    return make_plan(build_config(find_recipe(preset), settings, target.device_type), target, dataset)


def kinds(made: Plan) -> set[str]:
    return {problem.kind for problem in made.problems}


def test_the_largest_micro_batch_fits_and_one_more_does_not() -> None:
    made = plan()
    assert made.fits
    largest = made.largest_micro_batch
    assert largest is not None
    assert plan(batch_size=largest, gradient_accumulation_steps=1).fits
    more = plan(batch_size=largest + 1, gradient_accumulation_steps=2)
    assert not more.fits
    assert more.problems[0].kind == "error"
    assert f"{largest + 1} sequences at a time need" in more.problems[0].what


def test_a_run_that_does_not_fit_is_split_into_micro_batches() -> None:
    made = plan(batch_size=40, gradient_accumulation_steps=12)
    fix = made.problems[0].fix
    assert fix.startswith("--batch_size=24 --gradient_accumulation_steps=20")
    assert 24 * 20 == 40 * 12
    assert plan(batch_size=24, gradient_accumulation_steps=20).fits


def test_a_micro_batch_is_chosen_that_fits() -> None:
    made = plan("gpt2_124m", batch_tokens=491_520)
    assert made.fits
    assert made.spec.batch.tokens == 491_520
    assert made.spec.batch.batch_size <= (made.largest_micro_batch or 0)


def test_the_checkpoint_copy_counts_unless_only_the_end_is_saved() -> None:
    early = plan(target=H200, batch_size=64, max_iters=300, eval_interval=150)
    late = plan(target=H200, batch_size=64, max_iters=300, eval_interval=300)
    copy = early.memory.parts["copy to be saved"]
    assert copy == 12 * early.spec.parameters  # weights and two moments in float32
    assert "copy to be saved" not in late.memory.parts
    assert early.memory.total_bytes - late.memory.total_bytes == copy
    assert (early.training_estimate.first_checkpoint, late.training_estimate.first_checkpoint) == (150, 300)


def test_a_model_that_cannot_fit_names_settings_that_do() -> None:
    with pytest.raises(UserError) as raised:
        plan(n_layer=48, n_head=25, n_embd=1600, batch_size=1)
    first, *rest = raised.value.problems
    assert "RTX 4070 has 12.0 GiB" in first
    layers = next(int(text.rpartition("=")[2]) for text in rest if "--n_layer=" in text)
    assert plan(n_layer=layers, n_head=25, n_embd=1600, batch_size=1).largest_micro_batch is not None


def test_variants_change_what_fits() -> None:
    largest = {variant.name: variant.largest for variant in plan().variants}
    as_it_is, again, plain = (
        largest[name] for name in ("as it is", "activation_checkpointing=True", "kernels=plain, compile=off")
    )
    assert as_it_is is not None
    assert again is not None
    assert plain is not None
    assert plain < as_it_is < again


def test_shakespeare_on_an_h200_as_measured() -> None:
    """38.9 s, best near update 1750 at 1.46, 1.71 at the end."""
    made = plan("shakespeare_char", H200, CHARACTERS)
    assert made.times is not None
    low, _, high = made.times.total_s
    assert low < 38.9 < high
    assert made.training_estimate.loss is not None
    assert made.training_estimate.loss[0] < 1.71 < made.training_estimate.loss[2]
    assert made.training_estimate.overfits_at is not None
    assert 1750 / 1.5 < made.training_estimate.overfits_at < 1750 * 1.5
    assert any("overfit" in problem.what for problem in made.problems)


def test_schedules_that_do_not_fit_the_run() -> None:
    short = plan("shakespeare_char", H200, CHARACTERS, max_iters=1000)
    assert any("--lr_decay_iters=1000" in problem.fix for problem in short.problems)
    long_warmup = plan("shakespeare_char", H200, CHARACTERS, max_iters=90)
    assert any("warm-up" in problem.what for problem in long_warmup.problems)
    flat = plan("shakespeare_char", H200, CHARACTERS, max_iters=10_000)
    assert any("minimum at update 5,000" in problem.what for problem in flat.problems)


def test_evaluating_too_often_is_a_problem() -> None:
    made = plan("shakespeare_char", H200, CHARACTERS, eval_interval=5)
    problem = next(problem for problem in made.problems if "evaluation takes" in problem.what)
    interval = int(problem.fix.split("--eval_interval=")[1].split(",")[0])
    rarer = plan("shakespeare_char", H200, CHARACTERS, eval_interval=interval)
    assert not any("evaluation takes" in problem.what for problem in rarer.problems)


def test_a_full_disk_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": GIB})()
    monkeypatch.setattr("glassgpt.plan.plan_warnings.shutil.disk_usage", lambda path: usage)
    local = target_of_card(resolve_card_name("rtx4070").card, "found here")
    for target, kind, disk in ((local, "error", "the disk"), (RTX4070, "hint", "this machine's disk")):
        (disk_problem,) = [problem for problem in plan(target=target).problems if "disk has" in problem.what]
        assert disk_problem.kind == kind
        assert disk_problem.what.endswith(f"and {disk} has 1.0 free")


def test_energy_and_cost() -> None:
    made = make_plan(build_config(find_recipe("gpt2_124m"), {}, "cuda"), RTX4070, WEB, price=0.5)
    assert made.times is not None
    hours = made.times.total_s[1] / 3600
    assert made.times.cost == pytest.approx(0.5 * hours)
    assert made.times.kwh == pytest.approx(0.2 * hours)  # the card's 200 W


def test_json() -> None:
    document = json.loads(json.dumps(plan().as_dict()))
    memory = document["memory"]
    assert memory["total"] == sum(memory["parts"].values()) + memory["context"] + memory["recording"]
    assert document["model"]["parameters"] == 124_373_760
    assert document["time"]["total_s"][0] < document["time"]["total_s"][2]


# --- the machine ---


def test_dtypes_are_what_the_card_has() -> None:
    def chosen_dtype(name: str, dtype: str = "auto") -> Any:
        return choose_dtype(
            dtype, target_of_card(resolve_card_name(name).card, "asked for").traits, 768
        ).value

    assert chosen_dtype("t4") == chosen_dtype("rtx2060") == "float16"
    assert chosen_dtype("gtx1080") == chosen_dtype("p100") == chosen_dtype("gtx1660") == "float32"
    assert chosen_dtype("rtx4070") == chosen_dtype("mi300x") == "bfloat16"
    assert chosen_dtype("rtx4070", "float32") == chosen_dtype("m3-max") == "float32"


# --- the dataset ---


def test_a_prepared_dataset_is_read(tmp_path: Path) -> None:
    known = find_dataset_info(TrainConfig(dataset="shakespeare_char", data_dir=""))
    assert known.vocab_size == 65
    for split, tokens in (("train", 5000), ("val", 500)):
        (tmp_path / f"{split}.bin").write_bytes(b"\0\0" * tokens)
    folder_info = find_dataset_info(TrainConfig(data_dir=str(tmp_path)))
    assert (folder_info.train_tokens, folder_info.val_tokens, folder_info.vocab_size) == (5000, 500, 50257)
    (tmp_path / "meta.pkl").write_bytes(b"never opened")
    assert find_dataset_info(TrainConfig(data_dir=str(tmp_path))).tokenizer == "char"


def test_a_corpus_is_split_as_prepare_splits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """About 20 MB of text are held out, but no less than a two-thousandth."""
    stories = find_dataset_info(TrainConfig(dataset="tinystories"))
    assert stories.train_tokens == pytest.approx(0.47e9, rel=0.02)
    assert stories.val_tokens == pytest.approx(4.7e6, rel=0.1)
    assert stories.val_tokens * stories.bytes_per_token == pytest.approx(20e6, rel=1e-6)
    web = find_dataset_info(TrainConfig(dataset="fineweb_edu"))
    assert web.val_tokens / (web.train_tokens + web.val_tokens) == pytest.approx(0.0005, rel=1e-6)
    assert "not prepared" in web.source
    monkeypatch.setattr(prepare_options, "_TARGET_VAL_BYTES", 40_000_000)
    assert find_dataset_info(TrainConfig(dataset="tinystories")).val_tokens == 2 * stories.val_tokens


@pytest.mark.parametrize(("vocabulary", "dtype", "each"), [(65_536, "uint16", 2), (65_537, "uint32", 4)])
def test_data_on_the_card_takes_the_bytes_of_its_ids(
    tmp_path: Path, vocabulary: int, dtype: str, each: int
) -> None:
    sums = {"train.bin": "a", "val.bin": "b", "tokenizer.json": "c"}
    tokens, name = {"train": 5000, "val": 500}, f"bpe:{vocabulary}"
    write_manifest(
        tmp_path, Manifest("mine", "here", name, vocabulary, dtype, tokens, {}, sums, None, (), "today")
    )
    dataset = find_dataset_info(TrainConfig(data_dir=str(tmp_path)))
    assert plan(target=H200, dataset=dataset).spec.workload.data_bytes == 5000 * each


def test_parts_of_memory_add_up_to_the_total() -> None:
    for made in (plan("shakespeare_char", H200, CHARACTERS), plan(), plan("eval_gpt2", H200)):
        estimate = made.as_dict()["memory"]
        assert (
            sum(estimate["parts"].values()) + estimate["recording"] + estimate["context"] == estimate["total"]
        )
        assert made.variants[0].total == estimate["total"]
    assert plan("shakespeare_char", H200, CHARACTERS).memory.graph_bytes > 0


def test_variants_are_what_their_settings_do() -> None:
    made = plan("gpt2_124m", batch_size=4, gradient_accumulation_steps=4)
    named = {variant.name: variant.largest for variant in made.variants}
    settings: dict[str, Any] = {"kernels": "plain", "compile": "off"}
    largest = named["kernels=plain, compile=off"]
    assert largest is not None
    assert plan(batch_size=largest, gradient_accumulation_steps=2, **settings).fits
    assert not plan(batch_size=largest + 1, gradient_accumulation_steps=2, **settings).fits


def test_pretrained_weights_that_do_not_fit_are_replaced_by_smaller_ones() -> None:
    with pytest.raises(UserError) as caught:
        plan("finetune_shakespeare", init_from="gpt2-xl")
    message = " ".join(caught.value.problems)
    assert "--n_layer" not in message
    assert "--init_from=gpt2-medium" in message
    assert plan("finetune_shakespeare", init_from="gpt2-medium").fits


def test_batch_size_is_no_fix_for_an_evaluation_that_does_not_fit() -> None:
    made = plan("eval_gpt2_xl", target_of_card(resolve_card_name("gtx1660").card, "asked for"))
    assert not made.fits
    (problem,) = (one for one in made.problems if one.kind == "error")
    assert "evaluation need" in problem.what
    assert "batch_size" not in problem.fix


# --- proposals ---


@pytest.mark.parametrize(("target", "dataset", "hours"), [(RTX4070, WEB, 12.0), (H200, CHARACTERS, 0.02)])
def test_a_proposal_takes_the_time_and_fits(target: PlanTarget, dataset: DatasetInfo, hours: float) -> None:
    config = build_config(find_recipe("gpt2_124m" if dataset is WEB else "shakespeare_char"), {}, "cuda")
    proposal = propose(config, target, dataset, hours)
    assert proposal.best.loss[1] == min(option.loss[1] for option in proposal.considered)
    assert proposal.best.seconds <= hours * 3600
    made = make_plan(proposal.best.config, target, dataset)
    assert made.fits
    assert "error" not in kinds(made)
    assert estimate_memory(made.spec.workload).total_bytes <= target.automatic_limit
    if dataset is WEB:  # nothing overfits here: all the time is used
        assert proposal.best.seconds > 0.85 * hours * 3600


def test_more_time_has_a_lower_loss() -> None:
    config = build_config(find_recipe("gpt2_124m"), {}, "cuda")
    losses = [propose(config, RTX4070, WEB, hours).best.loss[1] for hours in (1.0, 6.0, 48.0)]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("hours", [0.5, 5.0, 100.0])
def test_time_that_would_only_overfit_is_left_unused(hours: float) -> None:
    """Less than a minute is enough for a million characters: more time must not make it worse."""
    config = build_config(find_recipe("shakespeare_char"), {}, "cuda")
    short, long = (propose(config, RTX4070, CHARACTERS, time) for time in (0.004, hours))
    assert long.best.loss[1] <= short.best.loss[1] + 0.005
    assert long.best.seconds < 3600
    assert "overfit" in long.unused_time_reason
    assert not short.unused_time_reason


@pytest.mark.parametrize("card", ["rtx4070", "t4", "h200", "b200", "m1"])
@pytest.mark.parametrize(("dataset", "hours"), [(WEB, 3.0), (CHARACTERS, 0.03)])
def test_the_plan_of_a_proposal_agrees_with_it(card: str, dataset: DatasetInfo, hours: float) -> None:
    target = target_of_card(resolve_card_name(card).card, "asked for")
    preset = "gpt2_124m" if dataset is WEB else "shakespeare_char"
    best = propose(build_config(find_recipe(preset), {}, target.device_type), target, dataset, hours).best
    assert best.seconds <= 3600 * hours
    made = make_plan(best.config, target, dataset)
    assert made.times is not None
    assert made.times.total_s[1] == pytest.approx(best.seconds)
    assert made.times.throughput.mid == pytest.approx(best.tokens_per_s)
    assert made.training_estimate.loss == pytest.approx(best.loss)
    assert made.spec.parameters == best.parameters


def test_a_proposal_has_no_problems() -> None:
    config = build_config(find_recipe("shakespeare_char"), {}, "cuda")
    for hours in (0.02, 3.0):
        made = make_plan(propose(config, RTX4070, CHARACTERS, hours).best.config, RTX4070, CHARACTERS)
        assert kinds(made) <= {"hint"}, made.problems


def test_eval_interval_is_no_fix_for_one_evaluation() -> None:
    made = plan("gpt2_124m", H200, max_iters=5, eval_interval=5)
    (fix,) = (problem.fix for problem in made.problems if "evaluation takes" in problem.what)
    assert fix == "fewer --eval_tokens, with --closing_eval=False"


def test_too_little_time() -> None:
    config = build_config(find_recipe("gpt2_124m"), {}, "cuda")
    with pytest.raises(UserError, match="too short to train any model"):
        propose(config, RTX4070, WEB, 0.001)


def test_a_card_whose_speed_is_known_in_another_dtype() -> None:
    old, config = (
        target_of_card(resolve_card_name("gtx1080").card, "asked for"),
        build_config(find_recipe("quickstart"), {}),
    )
    with pytest.raises(
        UserError, match=r"speed of GTX 1080 in float16 is unknown; it is known with --dtype=float32"
    ):
        propose(replace(config, dtype="float16"), old, CHARACTERS, 8.0)
    assert propose(config, old, CHARACTERS, 8.0).best.seconds > 0


@pytest.mark.parametrize(
    ("card", "setting"),
    [("m3-max", {"graph": "on"}), ("rtx3090", {"fp8": True}), ("gtx1080", {"kernels": "triton"})],
)
def test_settings_that_training_refuses_are_not_proposed(card: str, setting: dict[str, Any]) -> None:
    config = build_config(find_recipe("quickstart"), {"dtype": "float32", **setting})
    with pytest.raises(UserError, match=f"--{next(iter(setting))}|FP8"):
        propose(config, target_of_card(resolve_card_name(card).card, "asked for"), CHARACTERS, 1.0)


def test_cards_without_bfloat16_are_not_proposed_to_shard() -> None:
    """Training refuses to shard with float16."""
    cards = with_cluster(target_of_card(resolve_card_name("v100").card, "asked for"), 8, 16, 12.5)
    proposal = propose(build_config(find_recipe("gpt2_124m_fast"), {}, "cuda"), cards, WEB, 1000.0)
    assert not any(option.config.shard for option in proposal.considered)


def test_a_proposal_is_a_file_that_can_be_trained(tmp_path: Path) -> None:
    config = build_config(find_recipe("shakespeare_char"), {}, "cuda")
    proposal = propose(config, RTX4070, CHARACTERS, 0.1)
    path = tmp_path / "proposed.toml"
    path.write_text(proposal.as_toml(), encoding="utf-8")
    assert build_config(find_recipe(str(path)), {}, "cuda") == proposal.best.config


# --- what training would decide or refuse ---


def test_eval_only() -> None:
    made = plan("eval_gpt2", H200, WEB)
    assert made.times is not None
    assert made.times.updates_s == (0.0, 0.0, 0.0)
    assert made.times.evaluations == 1
    assert made.times.total_s[1] < 120
    # Its speed is as uncertain as that of a run, and start-up has a band of its own.
    low, mid, high = made.times.total_s
    pace, evaluation_s = made.times.throughput, mid - made.times.start_s - made.times.saving_s
    assert mid - low > evaluation_s * (1 - pace.mid / pace.high)
    assert high - mid > evaluation_s * (pace.mid / pace.low - 1)
    assert not made.problems
    assert made.spec.parameters == 124_439_808  # GPT-2's own, with its biases and 50,257 tokens


def test_init_from_a_run_is_refused() -> None:
    with pytest.raises(UserError, match=r"glass plan RUN/config.toml"):
        plan(init_from="runs/quickstart")


def test_settings_that_the_machine_does_not_support() -> None:
    old = plan("gpt2_124m", target_of_card(resolve_card_name("rtx3090").card, "asked for"), fp8=True)
    assert old.problems[0].what == "RTX 3090 has no FP8"
    assert not any("FP8" in problem.what for problem in plan(fp8=True).problems)
    cpu = PlanTarget("a CPU", "cpu", 24 * GIB, {"float32": 1e11}, "measured", "asked for")
    refused = plan("shakespeare_char_cpu", cpu, CHARACTERS, kernels="triton", graph="on")
    assert {"--kernels=triton", "--graph=on"} <= {problem.what.split()[0] for problem in refused.problems}


def test_compile_is_decided_as_in_training() -> None:
    cpu = PlanTarget("a CPU", "cpu", 24 * GIB, {"float32": 1e11}, "measured", "asked for")
    long = plan("shakespeare_char", cpu, CHARACTERS)
    assert long.spec.workload.compiled
    assert long.times is not None
    assert long.times.compile_breaks_even is None
    short = plan("shakespeare_char", cpu, CHARACTERS, max_iters=5)
    assert not short.spec.workload.compiled
    assert short.times is not None
    assert (short.times.compile_breaks_even or 0) > 5


def test_the_flags_of_a_fix_fit() -> None:
    small = target_of_card(resolve_card_name("rtx2060 6gb").card, "asked for")
    made = plan("gpt2_124m", small, batch_size=16, gradient_accumulation_steps=1)
    fix = made.problems[0].fix
    size, steps = (int(word.split("=")[1]) for word in fix.split()[:2])
    assert plan("gpt2_124m", small, batch_size=size, gradient_accumulation_steps=steps).fits


def test_an_empty_split(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / f"{split}.bin").write_bytes(b"")
    with pytest.raises(UserError, match="empty split"):
        find_dataset_info(TrainConfig(data_dir=str(tmp_path)))
