"""The x axes of a run: updates, and the tokens, seconds, FLOPs and epochs that they stand for.

    knots = knots_of(Analysis(run_log), planned=5000)   # {"update": [0, …, 5000], "tokens": [0, …], …}

A curve is sent over its updates; the page maps these to another axis along the knots, between which it is
a straight line. Beyond the last line of a run that is not over they go on to its planned end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassgpt.i18n import translate
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import Floats, Ints
from glassgpt.show.page.time_strip import process_startups

MAX_KNOTS = 400
_TOLERANCE = 0.002  # of an axis: less than a pixel or two
_MAX_PROCESSES = 40  # whose beginnings are knots

Knots = dict[str, list[float]]


def axis_labels(run: Analysis, knots: Knots) -> list[dict[str, str]]:
    """Those that are known, in the order of the page's menu."""
    numbered = run.log.has_iteration_numbers
    labels = {
        "update": translate("axis.iteration") if numbered else translate("axis.line"),
        "tokens": translate("axis.tokens"),
        "seconds": translate("axis.seconds"),
        "flops": translate("axis.flops"),
        "epochs": translate("axis.epochs"),
    }
    return [{"id": name, "label": label} for name, label in labels.items() if name in knots]


def knots_of(run: Analysis, planned: int | None = None, eta_s: float | None = None) -> Knots:
    """By axis; those that are not known are missing. `planned`: the last update, `eta_s` until then."""
    steps = run.log.steps
    if not len(steps):
        return {"update": [0, planned or 1]}
    last = int(steps.iteration.max())
    starts = [part.first_iteration or 0 for part in run.log.segments[:_MAX_PROCESSES]]
    spread = np.linspace(0, len(steps) - 1, MAX_KNOTS - len(starts) - 2).astype(np.int64)
    at = np.unique(np.concatenate(([min(starts, default=0)], starts, steps.iteration[spread], [last])))
    at = at[at <= last]
    ahead = planned if planned is not None and planned > last else None
    seconds = _seconds_at(run, at)
    if seconds is not None and ahead is not None:
        # Without a forecast, the rest is as fast as what is done.
        rest_s = seconds[-1] / max(1, last - at[0]) * (ahead - last) if eta_s is None else eta_s
        seconds = np.append(seconds, seconds[-1] + rest_s)
    at = at if ahead is None else np.append(at, ahead)
    tokens = run.log.tokens_seen_at(np.minimum(at, last), run.tokens_per_iteration)
    if tokens is not None and ahead is not None:
        per_update = run.tokens_per_iteration or float(tokens[-1]) / max(1, last)
        tokens[-1] = tokens[-2] + per_update * (ahead - last)
    flops_per_token, train_tokens = run.size.flops_per_token, _train_tokens(run)
    knots: dict[str, Floats | None] = {"tokens": tokens, "seconds": seconds}
    if tokens is not None and flops_per_token:
        knots["flops"] = tokens * flops_per_token
    if tokens is not None and train_tokens:
        knots["epochs"] = tokens / train_tokens
    known = {
        name: [_short(value) for value in values.tolist()]
        for name, values in knots.items()
        if values is not None and np.isfinite(values).all() and values[-1] > values[0]
    }
    bends = _bends(at.astype(float), [np.array(values) for values in known.values()])
    return {
        "update": at[bends].tolist(),
        **{name: [values[index] for index in bends.tolist()] for name, values in known.items()},
    }


def _bends(at: Floats, values: Sequence[Floats]) -> Ints:
    """The knots that a straight line between others does not give, to _TOLERANCE of the whole axis."""
    kept, open_parts = {0, len(at) - 1}, [(0, len(at) - 1)]
    spans = [max(float(one[-1] - one[0]), 1e-300) for one in values]
    while open_parts:
        first, last = open_parts.pop()
        if last - first < 2:
            continue
        inner = np.arange(first + 1, last)
        errors = np.zeros(len(inner))
        for one, span in zip(values, spans, strict=True):
            line = np.interp(at[inner], at[[first, last]], one[[first, last]])
            errors = np.maximum(errors, np.abs(one[inner] - line) / span)
        worst = int(np.argmax(errors))
        if errors[worst] > _TOLERANCE:
            middle = int(inner[worst])
            kept.add(middle)
            open_parts += [(first, middle), (middle, last)]
    return np.array(sorted(kept), dtype=np.int64)


def _short(value: float) -> float:
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.7g}")


def _train_tokens(run: Analysis) -> float | None:
    """Of the training split, once."""
    tokens = run.log.setup.data.get("tokens")
    count = tokens.get("train") if isinstance(tokens, dict) else None
    return float(count) if isinstance(count, int | float) and count > 0 else None


def _seconds_at(run: Analysis, at: Ints) -> Floats | None:
    """Wall time until each of these updates, evaluations and checkpoints included."""
    split, log = run.time_split, run.log
    if split is None:
        return None
    row_ms = split.train_ms + split.pause_ms + split.stall_ms + split.startup_ms
    starts, startup_ms = process_startups(log)
    place = np.concatenate((log.steps.iteration, split.apart_iteration, starts))
    ms = np.concatenate((row_ms, split.apart_ms, startup_ms))
    order = np.argsort(place, kind="stable")
    total_s: Floats = np.cumsum(ms[order]) / 1e3
    index = np.searchsorted(place[order], at, side="right") - 1
    return np.where(index >= 0, total_s[np.maximum(index, 0)], 0.0)
