"""What trainers print about a run before its first step: settings, sizes, the device, whether it resumes.

Every trainer's patterns (`Trainer.header`) are tried on every log: forks print each other's lines. Below are
only those that belong to no trainer in particular.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence

from glassgpt.config import ConfigValue
from glassgpt.estimate.cards import guess_card
from glassgpt.runs.builder import PROMPT, RunBuilder
from glassgpt.runs.lines import letters_of
from glassgpt.runs.log_numbers import COUNT, MAX_COUNT, NUMBER, parse_count, parse_number
from glassgpt.runs.trainer import HeaderLine
from glassgpt.runs.trainers import TRAINERS
from glassgpt.sanitize import sanitize_text

# The settings that explain a run, by the names of TrainConfig.
# fmt: off
KNOWN_SETTINGS = frozenset((
    "n_layer", "n_head", "n_embd", "block_size", "vocab_size", "bias", "dropout", "batch_size",
    "gradient_accumulation_steps", "learning_rate", "min_lr", "warmup_iters", "lr_decay_iters", "decay_lr",
    "max_iters", "weight_decay", "beta1", "beta2", "grad_clip", "eval_interval", "eval_iters", "eval_only",
    "log_interval", "always_save_checkpoint", "init_from", "dataset", "out_dir", "device", "dtype", "compile",
    "seed", "wsd_decay_fraction", "wsd_decay_iters",
))
# fmt: on
_SETTING_ALIASES = {alias: name for trainer in TRAINERS for alias, name in trainer.setting_names.items()}

# The forms in which settings are printed. `Overriding: ` is by nanoGPT's configurator.py and its many copies.
_ASSIGNMENT = re.compile(r"""^(?:Overriding:\s*)?["']?(\w+)["']?\s*[:=]\s*([^#(]+?),?\s*(?:#.*)?$""")
_KEYWORD_ARGUMENT = re.compile(r"\b(\w+)=([^,()]+)")
_FLAG = re.compile(r"--([\w-]{1,60})(?:=|\s)(?!-)(\S{1,200})")
_TABLE_ROW = re.compile(r"^\|\s*([^|]+?)\s*\|\s*([^|]+?)\s*\|$")
_LIST_ITEM = re.compile(r"^\s*([A-Z][\w ]+?)\s*=\s*([\d,]+)\s*$")

_MAX_SETTING_CHARS = 2000  # of a line
_MIN_WHOLE_MODEL = 1e9  # parameters that are trained: no adapter has so many

# A shell's prompt, or its `set -x`, and a program that trains.
_PROMPT = r"^(?:[^$#%❯]{0,80}[$#%❯]|\+) (?:[A-Z_]{1,30}=\S{1,80} |(?:nohup|time|sudo) ){0,6}(?:\S{0,80}/)?"
_LAUNCHERS = ("uv", "torchrun", "accelerate", "deepspeed", "srun", "mpirun")
_PROGRAMS = {"python": r"[\d.]{0,4}"} | dict.fromkeys(
    (*_LAUNCHERS, *(trainer.command for trainer in TRAINERS if trainer.command)), ""
)
_COMMANDS = tuple((name, rf"{_PROMPT}{name}{version}\s", "command") for name, version in _PROGRAMS.items())

# How cards are named, and what may follow: "RTX 3060 Ti", "V100 32G", "A100-SXM4-40GB".
_SUFFIX = r"(?:[ -](?:SXM\d|PCI[eE]|NVL))?(?:[ -]\d{2,3} ?Gi?B?)?"
_CARDS = {
    **dict.fromkeys(("RTX", "GTX"), r" ?A?\d{4}(?: ?Ti)?(?: ?(?:SUPER|Super))?(?: Laptop GPU)?"),
    **dict.fromkeys(("V100", "P100", "A100", "H100", "H200", "B200", "A40", "L40"), rf"S?{_SUFFIX}"),
    **dict.fromkeys(("T4", "L4", "A10", "A30"), rf"G?{_SUFFIX}"),
}

_OF_ANY_TRAINER: tuple[HeaderLine, ...] = (
    ("nohup: ", r"^nohup: ignoring input\b", "command"),
    # Launchers: DeepSpeed's two programs, and torchrun.
    ("runner.py", r"\brunner\.py:\d{1,5}:main\] cmd = ", "command"),
    ("WORLD INFO", r"\blaunch\.py:\d{1,5}:main\] WORLD INFO DICT: ", ""),
    ("OMP_NUM_THREADS", r"\bSetting OMP_NUM_THREADS environment variable for each process to be \d", ""),
    (":", r"^[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?:[A-Z]{2,5} )?20\d\d$", "date"),
    ("parameters", rf"(?<!able )(?<!\w)[Nn]umber of parameters:?\s*=?\s*{COUNT}", "parameters"),
    ("param", rf"(?<!expert )(?:Total|Model|model)[ _]param(?:eter)?s:?\s*{COUNT}", "parameters"),
    (
        "aram",
        rf"(?i)(?:^|\|)\s{{0,8}}(?:# ?|n_|num_|model )?(?:param(?:eter)?s|parameter count)"
        rf"(?:\s{{0,4}}[:=]\s*|\s{{4,40}}){COUNT}"
        r"(?=$|[\s|])",
        "parameters",
    ),
    # `10.79 M parameters` in Karpathy's lecture, `model: 63.91M params | vocab 6400`, `params=3.15M  …`
    ("param", rf"^\W*(?:model:? )?{COUNT} (?:model )?param(?:eter)?s\b", "parameters"),
    # In any language: `Modèle chargé: 958,950,144 params (step 21000)`. Not of one of several models.
    (
        "param",
        r"(?i)(?<!teacher )(?<!reference )(?<!ref )(?<!reward )(?<!draft )(?<![\w-])"
        r"(?:(?:model\w{0,2}|modèle|network|transformer|total)(?!\w)|模型|モデル|모델)[^\d:=]{0,30}[:=]\s{0,4}"
        rf"{COUNT}\s?(?:model )?param(?:eter)?s\b(?! each| per)",
        "parameters",
    ),
    ("参数", rf"(?:总参数[量数]?|(?<!训练)参数(?:总[量数]|数?量))\s?[:：=]\s{{0,4}}{COUNT}", "parameters"),
    ("参数", rf"可训练(?:的)?参数(?:总?[量数]|数量)?\s?[:：=]\s{{0,4}}{COUNT}", "trainable_parameters"),
    # DeepSpeed's, of all parameters that it has partitioned so far.
    ("num_elems", rf"finished initializing model - num_params = \d+, num_elems = {COUNT}", "parameters"),
    ("params=", rf"(?:^|[\s;,|])params={COUNT}(?=[\s,|]|$)", "parameters"),
    ("parameters", rf"Number of trainable parameters\s*:\s*{COUNT}", "trainable_parameters"),
    # Hugging Face's: an adapter's alone, where one is trained.
    ("parameters", rf"Number of trainable parameters\s*=\s*{COUNT}", "updated_parameters"),
    ("parameters", rf"Number of non[- ]trainable parameters\s*[:=]\s*{COUNT}", "frozen_parameters"),
    (
        "val_loss",
        rf"(?i:load|resum)\w{{1,3}}\b.{{0,80}}checkpoint.{{0,300}}\bstep\W{{1,3}}\d.{{0,80}}\bval_loss\W{{1,3}}{NUMBER}",
        "resumed_val_loss",
    ),
    # Of one of several runs, on a line of its own: `===== Starting run: no_rope =====`.
    (
        "tarting ",
        r"^\W*[Ss]tarting (?:[Rr]un|[Ee]xperiment|[Tt]rial)\s?[:#=-]"
        r"\s?[\"']?([A-Za-z][\w.+-]{0,60})[\"']?\W*$",
        "run_name",
    ),
    ("params:", rf"^\W*All params: {COUNT}", "parameters"),
    ("tokens/iter", rf"\btokens/iter(?:ation)?\s?[:=]\s?{COUNT}", "tokens_per_iteration"),
    ("Num Epochs", r"\bNum Epochs = ([\d,]{1,12})", "epochs"),
    # The card, wherever a line before the first step names it.
    *(
        (
            name,
            r"\b(?:NVIDIA|Tesla|GeForce|[Uu]sing|GPUs?|[Dd]evice|[Cc]ard|\d[x×])[\s:=]{0,3}(?:an? )?"
            rf"((?:(?:NVIDIA|Tesla|GeForce) ){{0,2}}{name}{detail})(?![\w/.])",
            "card",
        )
        for name, detail in _CARDS.items()
    ),
    ("using device", r"using device:\s*(\S+)", "device"),
    ("world", rf"(?i)(?<![*/] )\b(?:ddp_)?world[_ ]size[:= ]+{COUNT}", "world_size"),
    ("nproc", r"--nproc[-_]per[-_]node[= ](\d{1,5})\b", "world_size"),
    # What a program prints before it trains: a count of steps that begins again after it is another run's.
    ("param", r"(?<![\w.])\d[\d.,]{0,20}\s?[KMB]? (?:\w{1,20} ){0,2}param(?:eter)?s\b", "start"),
    ("train", r"(?i)^\W*(?:start|begin)\w{0,5}\b(?!.*\bepoch\b).{0,40}\btrain", "start"),
    (
        "rain",
        r"(?i)^\W*train\w{0,4} (?:has |is )?start(?:ed|ing|s)\b(?!.*\b(?:epoch|step|at|from)\b)",
        "start",
    ),
    ("Namespace(", r"\bNamespace\(", "start"),
    ("oad", r"(?i)^\W*load(?:ed|ing) (?:\w{1,20} ){0,3}(?:model|weights)\b", "start"),
    # As the program reports it: a config may set tensor_parallel, and a trainer without it ignore that.
    *(
        (name, rf"\b{name}(?:_size|_degree)?\s?[=:]\s*{COUNT}", field)
        for name, field in (
            ("tp_size", "tensor_parallel"),
            ("pp_size", "pipeline_parallel"),
            ("dp_size", "data_parallel"),
            ("tensor_model_parallel", "tensor_parallel"),
            ("pipeline_model_parallel", "pipeline_parallel"),
        )
    ),
)


def _parse_peak(text: str) -> float:
    """Some print FLOP/s, and some TFLOP/s."""
    peak = float(text)
    return peak * 1e12 if peak < 1e6 else peak


_VALUES: dict[str, Callable[[str], int | float | str]] = {  # of LoggedSetup
    **dict.fromkeys(("parameters", "tokens_per_iteration", "planned_iterations", "world_size"), parse_count),
    **dict.fromkeys(("tensor_parallel", "pipeline_parallel", "data_parallel"), parse_count),
    **dict.fromkeys(("flops_per_token", "epochs"), parse_number),
    "peak_flops": _parse_peak,
    "device_name": str.strip,
}
HeaderPattern = tuple[str, re.Pattern[str], str]  # a HeaderLine, compiled
_PATTERNS: Sequence[HeaderPattern] = [
    (substring, re.compile(pattern), field)
    for substring, pattern, field in sorted(
        (*_COMMANDS, *(line for trainer in TRAINERS for line in trainer.header), *_OF_ANY_TRAINER),
        # A process's start first: it discards earlier settings.
        key=lambda line: line[2] not in ("command", "", "resumed", "run_name"),
    )
]
_LETTERS = [letters_of(substring) for substring, _, _ in _PATTERNS]


def header_patterns(letters: bytes | None = None) -> Sequence[HeaderPattern]:
    """Those that a line may match of a block with these `distinct_letters`; of any block: all."""
    if letters is None:
        return _PATTERNS
    return [pattern for pattern, own in zip(_PATTERNS, _LETTERS, strict=True) if own in letters]


def read_header(line: str, builder: RunBuilder, patterns: Sequence[HeaderPattern]) -> None:
    """Record what the line says about the run as a whole."""
    for substring, pattern, field in patterns:
        if substring in line and (match := pattern.search(line)):
            if field not in ("command", "date", "", "resumed", "run_name"):  # those begin a process
                builder.note_start()
            try:
                _record(field, match[match.lastindex or 0], line, builder)
            except ValueError:
                continue  # "number of parameters: ..."

    if len(line) > _MAX_SETTING_CHARS:
        return
    if "--" in line and ".py" in line:
        settings = [_known_setting(name.replace("-", "_"), text) for name, text in _FLAG.findall(line)]
        builder.add_command(dict(filter(None, settings)))
        return
    # Once it trains, lines that look like settings are samples and noise.
    is_too_late = builder.last_iteration is not None
    if is_too_late or not ("=" in line or ":" in line or "|" in line):
        return
    if match := _TABLE_ROW.match(line) or _LIST_ITEM.match(line) or _ASSIGNMENT.match(line):
        _record_setting(match[1], match[2], builder)
    elif "=" in line:
        for name, text in _KEYWORD_ARGUMENT.findall(line):
            _record_setting(name, text, builder)


def _record(field: str, text: str, line: str, builder: RunBuilder) -> None:
    """Raises ValueError where a count or a number is expected, and the text is none."""
    setup = builder.setup
    if field == "command":
        builder.mark_process_start(PROMPT)
    elif field in ("", "resumed"):
        builder.start_process(resumed=field == "resumed", text=line)
    elif field == "run_name":
        builder.start_process(text=line)
        builder.setup.values[field] = text
    elif field == "date":
        builder.note_date()
    elif field == "start":
        pass  # noted
    elif field == "compile":
        setup.settings.setdefault("compile", True)
    elif field == "vocab_size":
        setup.settings[field] = parse_count(text)
    elif field in _VALUES:
        setup.values[field] = _VALUES[field](text)
    elif field in ("decayed_parameters", "undecayed_parameters"):
        setattr(setup, field, parse_count(text))
    elif field == "updated_parameters":
        if (count := parse_count(text)) >= _MIN_WHOLE_MODEL:
            setup.values.setdefault("parameters", count)
    elif field in ("trainable_parameters", "frozen_parameters"):
        setattr(setup, field, parse_count(text))
        total, known = setup.trainable_parameters + setup.frozen_parameters, setup.values.get("parameters")
        setup.values["parameters"] = max(total, known if isinstance(known, int) else 0)
    elif field == "parameters_of_rank":
        # All ranks of tensor parallelism have as many; a pipeline's first stage has the embedding, too.
        degree = 1 if setup.values.get("world_size") == 1 else setup.values.get("tensor_parallel")
        if isinstance(degree, int) and setup.values.get("pipeline_parallel") in (None, 0, 1):
            setup.values["parameters"] = parse_count(text) * max(1, degree)
    elif field == "resumed_val_loss":
        if not builder.has_steps:  # else the best one is loaded after training
            setup.values[field] = float(text)
    elif field == "card":
        _record_card(text, builder)
    else:
        _record_setting(field, text, builder)


def _record_card(text: str, builder: RunBuilder) -> None:
    """A text may name several cards: then none of them is known to be this run's."""
    values, name = builder.setup.values, re.sub(r"(\d) ?Gi?B?$", r"\1GB", text.strip())
    if builder.last_iteration is not None or guess_card(name) is None:
        return
    other = values.setdefault("device_name", name)
    if other is not None and guess_card(str(other)) not in (None, guess_card(name)):
        values["device_name"] = None


def _record_setting(name: str, text: str, builder: RunBuilder) -> None:
    builder.setup.settings.update(filter(None, [_known_setting(name, text)]))


def _known_setting(name: str, text: str) -> tuple[str, ConfigValue] | None:
    known_name = known_setting_name(name)
    value = None if known_name is None else parse_setting(text)
    return None if known_name is None or value is None else (known_name, value)


def known_setting_name(name: str) -> str | None:
    """TrainConfig's name of a setting, by that or by a trainer's own name."""
    return name if name in KNOWN_SETTINGS else _SETTING_ALIASES.get(name)


def parse_setting(text: str) -> ConfigValue | None:
    """A number, a truth value or a word; never an expression. None: not a setting's value."""
    text = text.strip()
    value: ConfigValue | None = None
    if text in ("true", "false"):
        value = text == "true"
    elif "," in text and text.replace(",", "").isdigit():
        value = int(text.replace(",", ""))
    elif len(text) < 200:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = text if re.fullmatch(r"[\w./:-]{1,100}", text) else None
        else:
            if isinstance(value, str):
                value = sanitize_text(value)  # escape sequences in the quotes have just become real ones
            elif not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > MAX_COUNT:
                value = None
    return value
