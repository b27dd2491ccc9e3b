"""What trainers print about a run before its first step."""

from __future__ import annotations

import pytest
from log_checks import parse_facts, parse_log, parse_logs
from printed import SyntheticRun, llmc

from glassgpt.runs.run_log import LoggedSetup

BODY = "".join(f"iter {at}: loss 3.0, time 33.00ms, mfu 5.00%\n" for at in range(12))


def setup_of(header: str) -> LoggedSetup:
    return parse_log(header + "\n" + BODY).setup


def test_a_config_file_as_nanogpt_echoes_it() -> None:
    setup = setup_of(
        "Overriding config with config/train_shakespeare_char.py:\n# a comment with "
        "max_iters = 7\nout_dir = 'out-x'\n"
        "eval_interval = 250 # keep frequent\nalways_save_checkpoint = False\ndataset = 'shakespeare_char'\n"
        "learning_rate = 1e-3 # with baby networks\nbatch_size = 64\nblock_size = "
        "256\n#n_layer = 99\nn_layer = 6\n"
        "gradient_accumulation_steps = 5 * 8\nOverriding: max_iters = 2000\nOverriding: compile = False\n"
    )
    settings = dict(setup.settings)
    assert settings.pop("gradient_accumulation_steps", 40) == 40  # an expression may be worked out, or left
    assert settings == {
        "out_dir": "out-x",
        "eval_interval": 250,
        "always_save_checkpoint": False,
        "dataset": "shakespeare_char",
        "learning_rate": 1e-3,
        "batch_size": 64,
        "block_size": 256,
        "n_layer": 6,
        "max_iters": 2000,
        "compile": False,
    }


def test_a_command_line() -> None:
    setup = setup_of(
        "$ python train.py config/x.py --device=cpu --compile=False --eval_iters=20 --block_size=64"
    )
    assert {name: setup.settings[name] for name in ("device", "compile", "eval_iters", "block_size")} == {
        "device": "cpu", "compile": False, "eval_iters": 20, "block_size": 64,
    }  # fmt: skip


def test_parameters() -> None:
    cases: list[tuple[str, int]] = [
        ("number of parameters: 10.65M", 10_650_000),
        ("number of parameters: 0.80M", 800_000),
        ("number of parameters: 1.56B", 1_560_000_000),
        ("Total parameters: 124,475,904", 124_475_904),
        ("num_parameters: 124475904 => bytes: 248951808", 124_475_904),
        ("Model params: 1.1B", 1_100_000_000),
    ]
    wrong = [(line, count, got) for line, count in cases if (got := setup_of(line).parameters) != count]
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "parameters"),
    [
        ("10.788929 M parameters", 10_788_929),
        ("model: 63.91M params | vocab 6400 | device cuda:0", 63_910_000),
        ("params=3.15M  device=mps", 3_150_000),
        ("  Modèle chargé: 123,456,789 params (step 500)", 123_456_789),
        ("Modell geladen: 1.5B Parameter", None),
        ("模型加载: 26.8M params", 26_800_000),
        ("Model loaded = 12.5M parameters", 12_500_000),
        ("params: 12.50M", 12_500_000),
        ("#params = 123456789", 123_456_789),
        ("n_params: 1.5B (tied)", 1_500_000_000),
        ("parameters: 12500000", 12_500_000),
        ("* 模型参数总数: 1234567", 1_234_567),
        ("总参数量: 26.8 百万", 26_800_000),
        ("加载的模型可训练参数：104.5 百万", 104_500_000),
        ("参数量: 1.2亿", 120_000_000),
        ("hyperparameters: 12", None),
        ("参数 3: 7", None),
        ("Teacher model: 7B params", None),
        (
            "finished initializing model - num_params = 291, num_elems = 6.74B",
            6_740_000_000,
        ),
        ("Encoder: 12M params", None),
        ("2 models with 5M parameters each", None),
        ("the 5 parameters of params=x", None),
    ],
)
def test_parameters_of_home_made_loops(line: str, parameters: int | None) -> None:
    assert setup_of(line).parameters == parameters


def test_tokens_per_iteration_and_vocabulary() -> None:
    setup = setup_of("tokens per iteration will be: 491,520\nfound vocab_size = 65 (inside data/x/meta.pkl)")
    assert setup.tokens_per_iteration == 491_520
    assert setup.settings["vocab_size"] == 65


def test_the_groups_of_the_optimizer_are_all_parameters() -> None:
    setup = setup_of(
        "num decayed parameter tensors: 26, with 10,740,096 parameters\n"
        "num non-decayed parameter tensors: 13, with 4,992 parameters"
    )
    assert setup.trained_parameters == 10_745_088


def test_the_table_of_llm_c() -> None:
    setup = parse_log(llmc(SyntheticRun()).text).setup
    assert setup.settings["batch_size"] == 64
    assert setup.settings["block_size"] == 1024
    assert setup.settings["eval_interval"] == 10
    assert setup.world_size == 1


def test_devices_that_share_a_model() -> None:
    setup = setup_of("ddp_world_size=8, dp_size=2, tp_size=4")
    assert (setup.world_size, setup.data_parallel, setup.tensor_parallel) == (8, 2, 4)
    assert setup_of("`torchrun --standalone --nproc_per_node=2 train.py`").world_size == 2
    # A setting that the trainer may not know is no fact about the run.
    assert setup_of("tensor_parallel = 4").tensor_parallel is None


def test_the_card_and_its_peak() -> None:
    setup = setup_of("GPU: NVIDIA H100 80GB HBM3 | Peak FLOPS (BF16): 9.89e+14")
    assert setup.device_name == "NVIDIA H100 80GB HBM3"
    assert setup.peak_flops == 9.89e14


def test_text_that_only_looks_like_settings_is_left_alone() -> None:
    setup = setup_of(
        "the batch_size = the number of rows\nlearning_rate: see below\nmax_iters = "
        "__import__('os')\nseed = 1 or 2"
    )
    assert (
        not {"max_iters", "batch_size"} & setup.settings.keys() or setup.settings.get("batch_size") == "the"
    )


def test_nothing_is_taken_once_it_runs() -> None:
    run_log = parse_log(BODY + "batch_size = 12\nmax_iters = 5\n" + BODY.replace("iter ", "iter 2"))
    assert "batch_size" not in run_log.setup.settings


def test_nonsense_does_not_stop_it() -> None:
    cases: list[str] = [
        "tokens per iteration will be: " + "9" * 5000,
        "number of parameters: " + "1," * 2000,
        "number of parameters: ...",
        "number of parameters: .M",
        "batch_size = " + "9" * 5000,
        "batch_size = " + "(" * 150,
        "learning_rate = 1e999999",
        "found vocab_size = ,",
        "| device | \x07 |",
        "num_processes = 1e5,",
        "world_size: 99999999999999999999999",
        "FLOPs per token: 1e400",
        "| peak TFlops | 1.2.3 |",
        "Peak FLOPS (BF16): .e+14",
        "Total optimization steps = ,,,",
    ]
    wrong = [
        (line, got) for line in cases if (got := parse_facts(line + "\n" + BODY).iterations_logged) != 12
    ]
    assert wrong == []


# --- what a careless reader would get wrong ---


def test_escapes_in_quoted_values_stay_harmless() -> None:
    text = "Overriding: device = 'cpu:\\x1b]0;pwned\\x07'\niter 0: loss 4.0, time 3.00ms, mfu 5.00%\n"
    device = parse_log(text).setup.settings["device"]
    assert isinstance(device, str)
    assert device.isprintable()


def test_settings_that_are_no_numbers_are_not_taken() -> None:
    text = "max_iters = 1e400\nn_embd = 1e308\niter 0: loss 4.0, time 3.00ms, mfu 5.00%\n"
    assert not parse_log(text).setup.settings


def test_all_parameters_of_an_adapter_run() -> None:
    text = (
        "trainable params: 1949696 || all params: 6245533696 || trainable%: 0.0312\n"
        "  Number of trainable parameters = 1,949,696\n"
        "{'loss': 3.5, 'epoch': 0.1}\n{'loss': 3.4, 'epoch': 0.2}\n"
    )
    assert parse_log(text).setup.parameters == 6_245_533_696


def test_each_stage_has_its_own_metric() -> None:
    text = "".join(
        f"Step {at:05d} | Validation bpb: {1 - at / 1e4:.6f}\n"
        f"step {at:05d}/00300 (0.00%) | loss: 3.0 | lrm: 1.00 | dt: 5.00ms | tok/sec: 486 | mfu: 1.00\n"
        for at in (0, 100, 200)
    )
    text += "Step 00000 | Validation loss: 1.011768\n"
    text += "Step 00000/00651 | Training loss: 0.84| lrm: 1.0| num_tokens: 9\n"
    runs = parse_logs(text)
    assert [(run_log.val_metric, len(run_log.steps)) for run_log in runs] == [
        ("bits_per_byte", 3),
        ("loss", 1),
    ]
    assert [[done.val_loss for done in run_log.evals] for run_log in runs] == [[1.0, 0.99, 0.98], [1.011768]]


def test_a_run_with_two_metrics_keeps_the_more_frequent() -> None:
    text = "".join(f"Step {at:05d} | Validation bpb: {1 - at / 1e4:.6f}\n" for at in (0, 100, 200))
    run_log = parse_log(text + "Step 00300 | Validation loss: 1.011768\n")
    assert run_log.val_metric == "bits_per_byte"
    assert [done.val_loss for done in run_log.evals] == [1.0, 0.99, 0.98, None]


def test_keys_that_a_terminal_echoed() -> None:
    assert len(parse_log("^[[B^[[Aiter 0: loss 4.0, time 3.00ms, mfu 5.00%\n").steps) == 1


def test_the_card_by_any_line_before_the_first_step() -> None:
    for line, name in (
        ("using V100 32G", "V100 32GB"),
        ("CUDA=12.6 | GPU=NVIDIA GeForce RTX 4060 Ti", "NVIDIA GeForce RTX 4060 Ti"),
        ("GPU: Tesla T4", "Tesla T4"),
        ("on 8x A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("step T4 of layer L4", None),
        ("device: cuda", None),
        ("using A10.json", None),
        ("using V100\nGPU: Tesla T4", None),  # which of them is not known
    ):
        assert setup_of(line).device_name == name
    assert parse_log(BODY + "GPU: Tesla T4\n" + BODY).setup.device_name is None


def test_epochs_as_planned() -> None:
    assert setup_of("   \\\\   /|    Num examples = 21 | Num Epochs = 12 | Total steps = 60").epochs == 12
    assert setup_of("").epochs is None


def test_parameters_in_a_column_of_names() -> None:
    text = "10:00:00 |   Parameters                  6,684,497      \n"
    steps = "".join(f"step {at} loss {3 - at / 10}\n" for at in range(5))
    assert parse_log(text + steps).setup.parameters == 6_684_497
