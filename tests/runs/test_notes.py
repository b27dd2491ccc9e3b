"""Texts about runs, in Hindi, Arabic and English: the numbers that a run's analysis needs are all found."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.errors import UserError
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.notes import read_note
from glassgpt.runs.recognise import read_logs
from glassgpt.runs.run_log import RunLog

HINDI_TABLES = """\
nanoGPT में आपके बदलाव का असर देखते हैं।

| बदलाव | पहले (runA) | बाद (runB) | असर |
|-------|-------------|------------|-----|
| batch_size | 32 | 4 | ↓ छोटा |
| gradient_accumulation_steps | 8 | 64 | ↑ |
| **प्रभावी बैच आकार** (टोकन) | 32 × 512 × 8 = 131k | 4 × 512 × 64 = 131k | समान |
| n_embd | 256 | 512 | बड़ा (18M → 60M) |
| learning_rate | 2e-3 | 5e-4 | कम |
| प्रति-पुनरावृत्ति समय (iter 600) | ~1200 ms | ~3100 ms | धीमा |
| **MFU** | ~6.9% | **9.1%** | +32% उच्चतर! |

### हानि

आपका सत्यापन हानि iter 300 पर:

* पुराना (2e-3 LR): 5.1234
* नया (5e-4 LR): 5.2345 (लगभग समान)

और iter 700 पर पुराना 4.3210 पर रुक गया।

| मीट्रिक | पुराना (25M मॉडल) | नया (60M मॉडल) | विजेता |
|---|---|---|---|
| पैरामीटर | ~25M | 60M | नया |
| MFU | 6.9% | 9.1% | नया |
| अपेक्षित पेरप्लेक्सिटी | ~30–35 | ~21–23 | नया |

बहुत लोग अब 24.xx वैल लॉस पाते हैं।
"""

HINDI_DEVICES = """\
### NanoGPT: लैपटॉप और कार्ड

| मीट्रिक | लैपटॉप (१५०० पुनरावृत्तियाँ, CPU) | 3090 (4000 पुनरावृत्तियाँ, GPU) | क्यों? |
|---|---|---|---|
| **प्रशिक्षण हानि** | 1.91 | 0.80 | अधिक चरण |
| **सत्यापन हानि** | 2.02 | 1.61 | दोनों |
| **प्रति-पुनरावृत्ति हानि** | 1.95 (पुनरावृत्ति 1500) | 0.94 (पुनरावृत्ति 4000) | - |
| **MFU** | 0.03% | 8.50% | हार्डवेयर |
| **प्रति पुनरावृत्ति समय** | 95-1210ms (परिवर्तनशील) | 3950ms? (शायद मूल्यांकन शामिल; सामान्य <150ms) | - |

कम बैच आकार (आपका 16 छोटा है; CPU धीमा है)।
इस कॉन्फ़िगरेशन (3-लेयर, 192-डिम, no dropout) के लिए:
- 5k पुनरावृत्तियाँ: प्रशिक्षण ~1.0-1.5, सत्यापन ~1.5-1.8
- `--batch_size=24` और `--max_iters=9000` आज़माएँ।
"""

ARABIC_PROSE = """\
شغّلت nanoGPT على الحاسوب المحمول (CPU) وعلى GPU.

على CPU: خسارة التدريب ١٫٨٠ و خسارة التحقق ١٫٩٥ بعد ١٢٠٠ خطوة، كل تكرار ٨٨ مللي ثانية.
على GPU: خسارة التدريب 0.70 و خسارة التحقق 1.66 بعد 4500 خطوة، كل تكرار 21 مللي ثانية.
"""

ENGLISH_PROSE = """\
I compared two nanoGPT runs. The old run had train 1.50, val 1.62 after 3000 steps, at 250 ms and MFU 14.2%.
The new run had train 0.55, val 1.81 after 6000 steps, at 40 ms and MFU 22.5%.
"""


def evaluations(run_log: RunLog) -> list[tuple[int | None, float | None, float | None]]:
    return [(one.iteration, one.train_loss, one.val_loss) for one in run_log.evals]


def steps(run_log: RunLog) -> list[tuple[int, float, float]]:
    table = run_log.steps
    return list(zip(table.iteration.tolist(), table.ms.tolist(), table.mfu.tolist(), strict=True))


def read(text: str) -> tuple[RunLog, ...]:
    return read_logs(text.split("\n"), "note.md")


def test_two_columns_are_two_runs() -> None:
    before, after = read(HINDI_TABLES)
    assert before.runs_in_file == after.runs_in_file == 2
    assert dict(before.setup.settings) | {"n_layer": None} == {
        "batch_size": 32, "gradient_accumulation_steps": 8, "block_size": 512, "n_embd": 256,
        "learning_rate": 2e-3, "n_layer": None,
    }  # fmt: skip
    assert after.setup.settings["learning_rate"] == 5e-4
    assert [one.setup.tokens_per_iteration for one in (before, after)] == [131_072, 131_072]
    assert [one.setup.parameters for one in (before, after)] == [25_000_000, 60_000_000]
    assert steps(before) == [(600, 1200.0, 6.9)]
    assert steps(after) == [(600, 3100.0, 9.1)]
    assert evaluations(before) == [(300, None, 5.1234), (700, None, 4.3210)]
    assert evaluations(after) == [(300, None, 5.2345)]


def test_each_number_has_its_line() -> None:
    before, after = read(HINDI_TABLES)
    text = HINDI_TABLES.split("\n")
    assert "5.1234" in text[before.evals[0].line - 1]
    assert "4.3210" in text[before.evals[1].line - 1]
    assert "5.2345" in text[after.evals[0].line - 1]
    assert "%" in text[int(before.steps.line[0]) - 1]
    assert (before.first_line, before.last_line) == (int(before.steps.line[0]), before.evals[1].line)


def test_a_validation_loss_above_guessing_is_a_perplexity() -> None:
    (event,) = read(HINDI_TABLES)[0].events
    assert (event.kind, float(event.text)) == ("perplexity-as-loss", 24.0)
    assert "24.xx" in HINDI_TABLES.split("\n")[event.line - 1]


def test_heads_say_device_and_last_iteration() -> None:
    cpu, gpu = read(HINDI_DEVICES)
    assert evaluations(cpu) == [(1500, 1.91, 2.02)]
    assert evaluations(gpu) == [(4000, 0.80, 1.61)]
    assert steps(cpu) == [(1500, 95.0, 0.03)]
    assert gpu.steps.mfu.tolist() == [8.5]
    assert math.isnan(gpu.steps.ms[0])  # with an evaluation in it, as the note itself suspects
    assert (cpu.evals[0].ms, gpu.evals[0].ms) == (1210.0, 3950.0)
    assert [cpu.steps.loss[0], gpu.steps.loss[0]] == [1.95, 0.94]
    assert (cpu.setup.settings["device"], gpu.setup.device_name) == ("cpu", "RTX 3090")


def test_a_shape_in_prose_is_of_the_run_whose_work_it_fits() -> None:
    """0.025 to 0.035% of 312 TFLOP/s in 95 ms: 7.4 to 10.4 GFLOP. 3 x 192 with 16 x 64 tokens takes 8.6."""
    cpu, gpu = read(HINDI_DEVICES)
    assert [cpu.setup.settings[name] for name in ("batch_size", "n_layer", "n_embd")] == [16, 3, 192]
    assert 7.4e9 < 16 * 64 * (6 * 12 * 3 * 192**2 + 12 * 3 * 192 * 64) < 10.4e9
    assert "batch_size" not in gpu.setup.settings
    assert "n_layer" not in gpu.setup.settings


def test_ranges_and_flags_of_advice_are_not_measured() -> None:
    for run_log in read(HINDI_DEVICES):
        assert "max_iters" not in run_log.setup.settings
        assert len(run_log.evals) == 1


def test_prose_without_a_table(subtests: pytest.Subtests) -> None:
    for text, expected in (
        (ARABIC_PROSE, [(1200, 1.80, 1.95, 88.0), (4500, 0.70, 1.66, 21.0)]),
        (ENGLISH_PROSE, [(3000, 1.50, 1.62, 250.0), (6000, 0.55, 1.81, 40.0)]),
    ):
        with subtests.test(text[:20]):
            runs = read(text)
            found = [(*evaluations(run_log)[0], float(run_log.steps.ms[0])) for run_log in runs]
            assert found == expected


def test_layers_follow_from_mfu_time_and_width() -> None:
    """12 layers of 384 with GPT-2's vocabulary: 299.9 MFLOP per token, so 12.9% at 3.9 s."""
    text = """nanoGPT
| | a | b |
|---|---|---|
| batch_size | 16 | 8 |
| gradient_accumulation_steps | 32 | 64 |
| tokens per iteration | 16 x 1024 x 32 = 524k | 8 x 1024 x 64 = 524k |
| n_embd | 384 | 768 |
| time (iter 100) | 3900 ms | 9340 ms |
| MFU | 12.9% | 15.4% |
| parameters | 33M | 125M |
"""
    small, large = (Analysis(run_log) for run_log in read(text))
    for run, width, mfu, seconds in ((small, 384, 0.129, 3.9), (large, 768, 0.154, 9.34)):
        assert run.log.setup.settings["n_layer"] == 12
        per_token = mfu * 312e12 * seconds / 524_288
        assert run.size.flops_per_token == pytest.approx(per_token, rel=1e-6)
        assert run.size.flops_per_token == pytest.approx(
            6 * (12 * 12 * width**2 + 50_304 * width) + 12 * 12 * width * 1024, rel=0.005
        )
    assert small.size.is_contradicted
    assert small.size.parameters == pytest.approx(40.5e6, rel=0.005)
    assert not large.size.is_contradicted


def test_a_setting_in_the_text_around_quoted_lines() -> None:
    text = "The loop runs `max_iters` (here 700); `eval_iters` (default: 200).\n```\n" + "".join(
        f"iter {at}: loss 3.0, time 33.00ms, mfu 5.00%\n" for at in (680, 690)
    )
    (run_log,) = read(text + "```\nand\n```\niter 700: loss 3.0, time 33.00ms, mfu 5.00%\n```\n")
    assert run_log.setup.settings == {"max_iters": 700}


def test_digits_of_hindi_and_arabic_in_quoted_lines() -> None:
    (run_log,) = read("```\niter ७००: loss ३.१, time ३३.५ms\niter ٧١٠: loss ٣٫٢, time ٣٤ms\n```\n")
    assert run_log.steps.iteration.tolist() == [700, 710]
    assert run_log.steps.loss.tolist() == [3.1, 3.2]
    assert run_log.steps.ms.tolist() == [33.5, 34.0]


def test_quoted_tails_of_other_work_are_two_runs() -> None:
    cpu = "iter 1980: loss 1.76, time 116.20ms, mfu 0.01%\niter 1990: loss 1.70, time 117.46ms, mfu 0.01%\n"
    gpu = "iter 4980: loss 0.80, time 33.22ms, mfu 11.07%\niter 4990: loss 0.82, time 33.23ms, mfu 11.09%\n"
    evals = (
        "step 2000: train loss 1.76, val loss 1.89\niter 2000: loss 1.7, time 1505.00ms, mfu 0.01%\n",
        "step 5000: train loss 0.62, val loss 1.70\niter 5000: loss 0.8, time 4447.00ms, mfu 9.99%\n",
    )
    for order in ((0, 1), (1, 0)):
        quotes = [f"```\n{(cpu, gpu)[at]}{evals[at]}```\n" for at in order]
        runs = read("here\n" + "and there\n".join(quotes))
        assert [one.steps.iteration.tolist()[-1] for one in runs] == [(2000, 5000)[at] for at in order]
        assert [evaluations(one) for one in runs] == [
            [((2000, 1.76, 1.89), (5000, 0.62, 1.70))[at]] for at in order
        ]


def test_an_evaluation_in_a_quoted_time_is_no_other_run() -> None:
    """The time of iteration 5000 has an evaluation in it, so MFU x time jumps; its MFU does not."""
    quote = (
        "iter 4990: loss 0.82, time 33.23ms, mfu 11.09%\niter 5000: loss 0.82, time 4446.83ms, mfu 9.99%\n"
    )
    assert len(read(f"```\n{quote}```\nagain:\n```\n{quote}```\n")) == 1


# --- what is no note ---


@pytest.mark.parametrize(
    "text",
    [
        "Shall I compare thee to a summer's day?\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "| time | place |\n|---|---|\n| 10 ms | here |\n",
        "The train left after 5 steps, at 10.25 in the morning.\n",
        "| loss |\n|---|\n",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        read(text)


_WORDS = st.sampled_from(
    ["|", "|---|---|", "iter 5", "val loss", "हानि", "12.9%", "~3900 ms", "16 × 1024", "MFU", "1e-3", "CPU",
     "GPU", "old", "new", "\n", " ", "٣٫٢", "9" * 400, "9" * 30 + " B", "parameters",
     "(", "`max_iters`", "n_embd", "= ", "M", "-", "``"]
)  # fmt: skip


@given(st.lists(_WORDS, max_size=60))
def test_no_text_crashes_it(words: list[str]) -> None:
    for run_log in read_note("".join(words).split("\n"), "x"):
        assert Analysis(run_log).facts.iterations_logged >= 0


def test_long_hostile_lines_are_read_in_time() -> None:
    begin = time.process_time()
    for piece in ("1,", "1.", "9", " ", "iter ", "batch size ", "`a` (", "1 x ", "|", "val loss 1.", "-"):
        read_note([piece * 2000] * 200, "x")
    assert time.process_time() - begin < 20
