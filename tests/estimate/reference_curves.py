"""The curves and final losses that the expected loss rests on, each with the setup of its run."""

from __future__ import annotations

import re
from dataclasses import replace

from glassgpt.estimate.loss_law import LossLawInputs
from glassgpt.runs.reading import DEMO_LOGS

Curve = list[tuple[int, float]]

SHAKESPEARE = LossLawInputs(
    parameters=10_646_784, vocab_size=65, batch_tokens=16_384, max_iters=5000, train_tokens=1_003_854,
    tokenizer="char", bytes_per_token=1.0, dataset="shakespeare_char", dropout=0.2, learning_rate=1e-3,
    warmup_iters=100,
)  # fmt: skip
README_CPU = replace(SHAKESPEARE, parameters=795_904, batch_tokens=768, max_iters=2000, dropout=0.0)
GPT2 = LossLawInputs(
    parameters=123_587_328, vocab_size=50304, batch_tokens=524_288, max_iters=19_073, train_tokens=10**10,
    dataset="fineweb_edu", learning_rate=6e-4, warmup_iters=715,
)  # fmt: skip
MUON = replace(
    GPT2, dataset="fineweb", arch="modern", optimizer="muon", learning_rate=None, warmup_iters=0,
    schedule="wsd", min_lr_ratio=0.0,
)  # fmt: skip
FAST = replace(
    SHAKESPEARE, arch="modern", optimizer="muon", learning_rate=4e-3, warmup_iters=0, schedule="wsd",
    min_lr_ratio=0.0, wsd_decay_fraction=0.6,
)  # fmt: skip


def demo(name: str) -> Curve:
    text = DEMO_LOGS[name].read_text(encoding="utf-8")
    found = re.findall(r"^step (\d+): train loss [\d.]+, val loss ([\d.]+)", text, re.M)
    assert len(found) > 5
    return [(int(iteration), float(loss)) for iteration, loss in found]


def text_part(tokens: int, **changes: object) -> LossLawInputs:
    """The README's model for CPUs on a part of tinyshakespeare."""
    return replace(README_CPU, train_tokens=tokens, **changes)  # type: ignore[arg-type]


def curve_points(*pairs: tuple[int, float]) -> Curve:
    return list(pairs)


# Validation losses. Published ones are rounded, and thinned out to where people look.
CURVES: dict[str, tuple[LossLawInputs, Curve]] = {
    # measured for this project
    "nanoGPT shakespeare_char": (SHAKESPEARE, demo("demo:gpu")),
    "nanoGPT README for CPUs": (README_CPU, demo("demo:cpu")),
    "100k characters": (
        text_part(100_000, max_iters=3000),
        curve_points((250, 2.529), (750, 2.315), (1250, 2.215), (1750, 2.171), (2250, 2.142), (3000, 2.141)),
    ),
    "100k characters, dropout": (
        text_part(100_000, max_iters=4000, dropout=0.2),
        curve_points((250, 2.544), (1250, 2.333), (2250, 2.255), (3250, 2.212), (4000, 2.211)),
    ),
    "100k characters, large batch": (
        text_part(100_000, max_iters=1000, batch_tokens=3072),
        curve_points((100, 2.568), (200, 2.461), (300, 2.381), (500, 2.209), (700, 2.144), (1000, 2.131)),
    ),
    "25k characters": (
        text_part(25_000, max_iters=1500),
        curve_points((100, 2.701), (300, 2.539), (500, 2.481), (900, 2.408), (1100, 2.404), (1500, 2.510)),
    ),
    "25k characters, dropout": (
        text_part(25_000, max_iters=3000, dropout=0.2),
        curve_points((200, 2.620), (600, 2.546), (1000, 2.439), (1800, 2.375), (3000, 2.365)),
    ),
    "25k characters, small model": (
        text_part(25_000, max_iters=4000, parameters=102_700),
        curve_points((250, 2.596), (750, 2.475), (1750, 2.374), (2750, 2.481), (4000, 2.624)),
    ),
    "50k characters, larger model": (
        text_part(50_000, max_iters=1500, parameters=3_164_000),
        curve_points((100, 2.621), (300, 2.419), (500, 2.302), (900, 2.233), (1100, 2.262), (1500, 2.361)),
    ),
    "quickstart": (
        replace(
            FAST, dataset="pylib", parameters=810_000, vocab_size=96, batch_tokens=1024, max_iters=600,
            train_tokens=9_369_149, dropout=0.0, warmup_iters=10, wsd_decay_fraction=0.5,
        ),
        curve_points((200, 1.9376), (400, 1.6939), (600, 1.4989)),
    ),
    # nanoGPT #211
    "shakespeare_char, 12 layers": (
        replace(SHAKESPEARE, parameters=21_260_000),
        curve_points(
            (250, 2.11), (500, 1.77), (750, 1.59), (1000, 1.52), (1250, 1.49), (1500, 1.51), (1750, 1.52),
            (2000, 1.56),
        ),
    ),
    # a log of a 302M model on shakespeare_char with a tenth of the learning rate
    "shakespeare_char, 24 layers of 1024": (
        replace(SHAKESPEARE, parameters=302_000_000, learning_rate=1e-4),
        curve_points((1250, 1.5257), (5000, 3.3419)),
    ),
    # AGNDM/build-nanogpt, FineWeb-Edu
    "build-nanogpt 124M": (
        GPT2,
        curve_points(
            (250, 6.170), (500, 5.315), (1000, 4.147), (1500, 3.813), (3000, 3.507), (5500, 3.330),
            (9250, 3.201), (15250, 3.099), (19072, 3.066),
        ),
    ),
    # its warm-up is a guess: three times the usual one
    "build-nanogpt 124M, three times as long": (
        replace(GPT2, max_iters=56_046, warmup_iters=2145),
        curve_points(
            (250, 6.589), (500, 5.835), (1000, 4.706), (1750, 3.984), (3500, 3.529), (6500, 3.327),
            (12000, 3.209), (22000, 3.120), (56000, 2.975),
        ),
    ),
    "build-nanogpt 30M": (
        replace(GPT2, parameters=29_950_000),
        curve_points((250, 6.519), (500, 5.734), (1000, 4.669), (1500, 4.245)),
    ),
    # jorahn/llm.c, FineWeb-Edu
    "llm.c 125M": (
        replace(GPT2, max_iters=18_794, warmup_iters=700, min_lr_ratio=0.0),
        curve_points(
            (250, 6.191), (500, 5.415), (1000, 4.136), (1500, 3.781), (3000, 3.464), (5500, 3.288),
            (9250, 3.170), (15250, 3.063), (18794, 3.037),
        ),
    ),
    # modded-nanogpt, records, FineWeb
    "llm.c 124M": (
        replace(GPT2, dataset="fineweb", max_iters=19_560, warmup_iters=700, min_lr_ratio=0.0),
        curve_points(
            (250, 6.171), (500, 5.374), (1000, 4.317), (1500, 4.006), (3000, 3.697), (5500, 3.530),
            (9250, 3.410), (15250, 3.297), (19560, 3.272),
        ),
    ),
    "llm.c 350M": (
        replace(
            GPT2, parameters=353_500_000, dataset="fineweb", max_iters=60_000, warmup_iters=700,
            min_lr_ratio=0.0, learning_rate=3e-4,
        ),
        curve_points(
            (250, 6.310), (500, 5.589), (1000, 4.373), (1750, 3.868), (3500, 3.540), (6750, 3.344),
            (12500, 3.199), (23000, 3.089), (60000, 2.928),
        ),
    ),
    "AdamW, June 2024": (
        replace(
            GPT2, dataset="fineweb", max_iters=9536, warmup_iters=256, schedule="wsd", min_lr_ratio=0.0,
            wsd_decay_fraction=0.21, learning_rate=1.8e-3,
        ),
        curve_points(
            (128, 6.034), (256, 5.231), (512, 4.329), (768, 4.055), (1408, 3.784), (2432, 3.623),
            (4096, 3.523), (6784, 3.458), (9536, 3.276),
        ),
    ),
    "Muon, October 2024": (
        replace(MUON, max_iters=5100, wsd_decay_fraction=0.284),
        curve_points(
            (125, 4.949), (250, 4.329), (500, 3.919), (750, 3.772), (1250, 3.623), (2000, 3.514),
            (3250, 3.425), (5100, 3.274),
        ),
    ),
    "Muon, track 3": (
        replace(MUON, max_iters=3350, wsd_decay_fraction=0.7),
        curve_points(
            (125, 4.664), (250, 4.124), (500, 3.835), (750, 3.717), (1125, 3.615), (1875, 3.465),
            (2875, 3.328), (3350, 3.279),
        ),
    ),
    # openai/parameter-golf, 1024 tokens of 2.44 bytes
    "parameter-golf": (
        replace(
            MUON, parameters=17_060_000, vocab_size=1024, bytes_per_token=2.442, max_iters=13_780,
            wsd_decay_fraction=0.087,
        ),
        curve_points(
            (200, 2.840), (400, 2.569), (800, 2.387), (1200, 2.303), (2200, 2.225), (3800, 2.177),
            (6400, 2.138), (10600, 2.108), (13780, 2.061),
        ),
    ),
    # a nanochat log, 65,536 tokens; from bits per byte,
    # at the 4.847 bytes per token that its first evaluation, ln(65,536), gives away
    "nanochat d20": (
        replace(
            MUON, parameters=477_000_000, vocab_size=65_536, bytes_per_token=4.847, dataset="fineweb_edu",
            max_iters=21_400,
        ),
        curve_points(
            (250, 4.037), (500, 3.608), (1000, 3.357), (1500, 3.244), (3000, 3.088), (5500, 2.981),
            (9250, 2.904), (15250, 2.839), (21400, 2.727),
        ),
    ),
}  # fmt: skip

# Only the end is known: bench/LOG.md, nanoGPT's README and #644.
FINALS: dict[str, tuple[LossLawInputs, float]] = {
    "the whole split": (README_CPU, 1.8982),
    "Muon on 2 cores": (
        replace(README_CPU, arch="modern", optimizer="muon", max_iters=300, schedule="wsd", min_lr_ratio=0.0),
        1.8735,
    ),
    "shakespeare_char_cpu_fast": (
        replace(FAST, parameters=235_000, batch_tokens=1024, max_iters=250, dropout=0.0), 1.8657
    ),
    "shakespeare_char_fast": (replace(FAST, batch_tokens=8192, max_iters=620, dropout=0.15), 1.4579),
    "800 updates": (replace(FAST, batch_tokens=8192, max_iters=800, dropout=0.15), 1.4479),
    "dropout 0.1": (replace(FAST, max_iters=400, dropout=0.1), 1.4702),
    "dropout 0.2": (replace(FAST, max_iters=400, dropout=0.2), 1.4931),
    "dropout 0.3": (replace(FAST, max_iters=400, dropout=0.3), 1.5350),
    "no dropout": (replace(FAST, max_iters=300, dropout=0.0), 1.4901),
    "nanoGPT's GPT-2": (
        replace(
            GPT2, dataset="openwebtext", batch_tokens=491_520, max_iters=600_000, warmup_iters=2000,
            train_tokens=9_035_582_198, bytes_per_token=4.3,
        ),
        2.85,
    ),
    "124M on an RTX 4090": (replace(MUON, max_iters=1750, wsd_decay_fraction=0.5), 3.286),
}  # fmt: skip
