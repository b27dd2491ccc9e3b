"""The words and numbers in which a text speaks of a run, in English, Hindi and Arabic.

    metric_of_row("**सत्यापन हानि**")               # "val_loss"
    last_iteration("val loss at iter 500")          # 500
    list(stated_settings("12 layers, n_embd=768"))  # name, value and place of each

notes.py decides whose they are. Digits are ASCII already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from glassgpt.config import ConfigValue
from glassgpt.runs.header import known_setting_name, parse_setting
from glassgpt.runs.log_numbers import MAX_COUNT
from glassgpt.runs.run_log import LogEvent

GPT2_VOCAB_SIZE = 50_257
_MAX_TOKEN_LOSS = 12.0  # nats: ln of the largest vocabularies; a larger "loss" is a perplexity
_MIN_QUOTED_DECIMALS = 3  # as trainers print losses; prose rounds to two

# --- words: English, Hindi, Arabic ---

_LOSS_WORD = r"(?:loss|हानि|लॉस|خسارة|فقدان)"
_VAL_WORD = r"(?:\bval(?:idation)?\b|सत्यापन|वैलिडेशन|वैल(?=\s*लॉस)|(?:ال)?تحقق)"
_TRAIN_WORD = r"(?:\btrain(?:ing)?\b|प्रशिक्षण|ट्रेनिंग|ट्रेन(?=\s*लॉस)|(?:ال)?تدريب)"
METRICS = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "perplexity": r"perplexity|परप्लेक्सिटी|पेरप्लेक्सिटी|حيرة",
        "val_loss": rf"{_VAL_WORD}[\s_-]*{_LOSS_WORD}|{_LOSS_WORD}\s*{_VAL_WORD}",
        "train_loss": rf"{_TRAIN_WORD}[\s_-]*{_LOSS_WORD}|{_LOSS_WORD}\s*{_TRAIN_WORD}",
        "loss": _LOSS_WORD,
        "mfu": r"\bmfu\b",
        "tokens_per_s": r"tok(?:en)?s?\s*(?:/|per)\s*s|टोकन\s*(?:/|प्रति)\s*सेकंड|"
        r"(?:رمز|توكن)\S*\s*(?:/|في ال|لكل)\s*ثانية",
        "tokens_per_iteration": r"(?:effective|global|total) batch|tokens per (?:iter|step|update)|प्रभावी बैच|"
        r"(?:ال)?دفعة (?:ال)?(?:فعالة|فعلية)|حجم (?:ال)?دفعة (?:ال)?فعال",
        "ms": r"\btime\b|\bms\b|समय|زمن|وقت",
        "parameters": r"\bparam(?:eter)?s?\b|पैरामीटर|पैरामीटर्स|معلمات|معاملات|معلمة",
        "n_layer": r"\blayers?\b|लेयर|परत|طبقات|طبقة",
        "n_embd": r"\b(?:width|embd|embedding|dim)\b|चौड़ाई|डिम|عرض|تضمين",
        "block_size": r"\bcontext\b|संदर्भ लंबाई|طول السياق|سياق",
        "max_iters": r"\b(?:iterations|iters|steps)\b|पुनरावृत्तियाँ|चरण|تكرارات|خطوات",
        "device_name": r"\b(?:device|gpu|card|hardware)\b|डिवाइस|कार्ड|हार्डवेयर|بطاقة|جهاز|عتاد",
    }.items()
}
_ITERATION_WORD = r"(?:iter(?:ation)?s?\b|steps?\b|पुनरावृत्ति\w*|इटर\w*|चरण\w*|(?:ال)?تكرار\w*|خطو[ةات]+)"
EVALUATION_WORD = re.compile(r"eval|मूल्यांकन|تقييم", re.IGNORECASE)
_DEFAULT = re.compile(r"default|डिफ़ॉल्ट|डिफ़ॉल्ट|افتراضي", re.IGNORECASE)
# Names of two runs in a text without a table; cards count as GPU.
CONTRASTED_NAMES = (
    (r"\bCPU\b|\blaptop\b|लैपटॉप|सीपीयू|معالج|حاسوب محمول", r"\bGPU\b|जीपीयू|بطاقة"),
    (r"\bold(?:er)?\b|\bprevious\b|पुरान\w+|قديم", r"\bnew(?:er)?\b|नय\w+|नया|جديد"),
    (r"\b(?:first|1st) run\b|\brun (?:1|A)\b|पहला रन|الأولى?",
     r"\b(?:second|2nd) run\b|\brun (?:2|B)\b|दूसरा रन|الثانية?"),
)  # fmt: skip
CARD_NAME = re.compile(
    r"\b(?:RTX\s*)?(?:[2345]0[5-9]0(?:\s?Ti)?(?:\s?Super)?|[AHBL]\d{2,3}S?|T4|V100|GH200)\b(?![/\d%])", re.I
)

# --- numbers ---

_PLAIN = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
TABLE_CELL = re.compile(
    rf"^[\s~≈*_`]*(?P<number>{_PLAIN})(?P<high>\s*[-–—]\s*(?:{_PLAIN}))?\s*(?P<unit>[kKMBG](?!\w)|ms\b|s\b|%)?(?P<rest>.*)$"
)
TOKEN_PRODUCT = re.compile(rf"^\W*({_PLAIN}(?:\s*[x×*]\s*(?:{_PLAIN}))+)\s*(?:[=≈]\s*({_PLAIN}\s*[kKMBG]?))?")
ITERATION_BEFORE = re.compile(rf"(?<![\d.])(\d[\d,]{{0,14}}k?)\s*[- ]?\s*{_ITERATION_WORD}", re.IGNORECASE)
ITERATION_AFTER = re.compile(
    rf"(?:{_ITERATION_WORD}|\bafter\b|\bबाद\b|بعد)\s*(\d[\d,]{{0,14}}k?)(?![\d.]*[%.\w]|\s*(?:ms|s|مللي|ثانية|मि|से)\b)",
    re.IGNORECASE,
)
QUOTED_LOSS = re.compile(rf"(?<![\d.,\w-])(\d{{1,2}}\.\d{{{_MIN_QUOTED_DECIMALS},8}})(?![\d.%\w-])")
ROUNDED_LOSS = {
    kind: re.compile(
        rf"(?:{word})(?:\s*{_LOSS_WORD})?\s*(?:[:=]|of\b|is\b|was\b|at\b)?\s*[~≈]?\s*(\d{{1,2}}\.\d{{1,8}})(?![\d.%+]|\s*[-–])"
        rf"|[~≈]?(?<![\d.<–-])(\d{{1,2}}\.\d{{1,8}})\s+(?:की|का|के|of|for|in|في|من)?\s*(?:{word}|{_LOSS_WORD}\s*{word})",
        re.IGNORECASE,
    )
    for kind, word in (("val_loss", _VAL_WORD), ("train_loss", _TRAIN_WORD))
}
PROSE_VALUES = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "ms": rf"(?<![\d.,<–-])({_PLAIN})\s*(?:ms\b|मि(?:ली)?\s?से\w*|مللي ثانية|مللي)",
        "mfu": rf"\bmfu\b[^\d%;.]{{0,20}}({_PLAIN})\s*%|(?<![\d.,<–-])({_PLAIN})\s*%\s*mfu\b",
        "parameters": r"(?<![\w.])(\d[\d.]*\s?[MB])\s*"
        r"(?:-?\s*(?:param\w*|model)|पैरामीटर|मॉडल|معلمة|معامل|نموذج)",
    }.items()
}
_PROSE_SETTINGS = {
    "n_layer": re.compile(r"(?<![\w.])(\d{1,3})\s*-?\s*(?:layers?\b|लेयर|परत|طبقة|طبقات)", re.IGNORECASE),
    "n_embd": re.compile(r"(?<![\w.])(\d{2,5})\s*-?\s*(?:dim\w*\b|embd\b|wide\b|डिम)", re.IGNORECASE),
    "batch_size": re.compile(
        r"(?<!effective )(?:batch[ _]size|बैच आकार|حجم (?:ال)?دفعة)"
        r"\W*(?:\w+\W+){0,2}?(\d{1,5})(?![\d.%]|\s*[x×-])",
        re.IGNORECASE,
    ),
    "dropout": re.compile(r"\bno dropout\b|\bdropout (\d\.\d+)", re.IGNORECASE),
}  # fmt: skip
_ASSIGNED = re.compile(r"(?<![-\w])`?([a-z][a-z_0-9]{2,40})`?\s?=\s?`?(-?[\d.]+(?:e-?\d+)?)(?![\w.]*\d)")
_IN_PARENTHESES = re.compile(r"`([a-z_0-9]{3,40})`\s*\(([^()]{1,60})\)")
_SHAPE = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "batch_size", "dropout",
          "gradient_accumulation_steps", "learning_rate", "max_iters")  # fmt: skip
_PERPLEXITY_AS_LOSS = re.compile(
    rf"(?<![\d.,])(\d{{2,3}})(?:\.(?:\d+|x+))?\s+(?:की|का|के)?\s*(?:{METRICS['val_loss'].pattern})|"
    rf"(?:{METRICS['val_loss'].pattern})\s*(?:[:=]|of\b|is\b)?\s*[~≈]?(\d{{2,3}}(?:\.\d{{1,2}})?)(?![\d.%\w])",
    re.IGNORECASE,
)


def metric_of_row(label: str) -> str | None:
    """A setting or a metric, by the first cell of a row."""
    word = label.strip().strip("*`").strip()
    return known_setting_name(word) or next(
        (name for name, pattern in METRICS.items() if pattern.search(label)), None
    )


def parse_iteration(text: str) -> int | None:
    value = float(text.replace(",", "").rstrip("kK")) * (1000 if text[-1] in "kK" else 1)
    return round(value) if value < MAX_COUNT else None


def last_iteration(text: str) -> int | None:
    found = [
        (match.end(), match[1])
        for pattern in (ITERATION_BEFORE, ITERATION_AFTER)
        for match in pattern.finditer(text)
    ]
    return parse_iteration(max(found)[1]) if found else None


def stated_settings(text: str) -> Iterator[tuple[str, ConfigValue, int]]:
    """`n_embd=768`, `12 layers`, "`max_iters` (here 5000)", with their place in the line; never a default or
    a flag in advice."""
    for match in _ASSIGNED.finditer(text):
        name = known_setting_name(match[1])
        value = parse_setting(match[2].rstrip("."))
        if name in _SHAPE and value is not None:
            yield name, value, match.start()
    for name, pattern in _PROSE_SETTINGS.items():
        for match in pattern.finditer(text):
            value = parse_setting(match[1]) if match[1] else 0.0
            if value is not None:
                yield name, value, match.start()
    for match in _IN_PARENTHESES.finditer(text):
        numbers = re.findall(_PLAIN, match[2])
        if match[1] in _SHAPE and len(numbers) == 1 and not _DEFAULT.search(match[2]):
            value = parse_setting(numbers[0])
            if value is not None:
                yield match[1], value, match.start()


def perplexities_as_losses(texts: Sequence[str]) -> Iterator[LogEvent]:
    """A "validation loss of 22" is a perplexity: no model is that much worse than guessing."""
    for at, text in enumerate(texts):
        for match in _PERPLEXITY_AS_LOSS.finditer(text):
            value = float(next(group for group in match.groups() if group))
            if value > _MAX_TOKEN_LOSS:
                yield LogEvent("perplexity-as-loss", f"{value:g}", at + 1, None)
