"""One sentence about a metric besides the loss: from where to where it went, and its extremes in between."""

from __future__ import annotations

from glassgpt.i18n import translate
from glassgpt.runs.metric_series import MetricCourse

MIN_EXTREME_SHARE = 0.3  # of the range: how far an extreme that is not the best is beyond both ends


def metric_sentence(course: MetricCourse) -> str:
    """From where to where a metric went, and its best value in between."""
    values: dict[str, object] = {"name": course.name, "first": course.first, "last": course.last}
    if course.values == 1:
        return translate("verdict.metric_once", **values)
    if course.highest == course.lowest:
        return translate("verdict.metric_constant", **values, count=course.values)
    went = (
        translate("verdict.metric_course", **values)
        if course.mean_of == 1
        else translate("verdict.metric_course_of_means", **values, count=course.mean_of)
    )
    ends = (course.first, course.last)
    extremes = [
        (course.highest, course.highest_iteration, max(ends) < course.highest),
        (course.lowest, course.lowest_iteration, min(ends) > course.lowest),
    ]
    range_ = course.highest - course.lowest
    phrases = []
    for is_highest, (value, at, is_beyond) in zip((True, False), extremes, strict=True):
        is_best = course.higher_is_better is not None and is_highest == course.higher_is_better
        nearest = max(ends) if is_highest else min(ends)
        if not is_beyond or (not is_best and abs(value - nearest) < MIN_EXTREME_SHARE * range_):
            continue
        if at is None:
            phrases.append(
                translate("verdict.metric_highest", value=value)
                if is_highest
                else translate("verdict.metric_lowest", value=value)
            )
        else:
            phrases.append(
                translate("verdict.metric_highest_at", value=value, at=at)
                if is_highest
                else translate("verdict.metric_lowest_at", value=value, at=at)
            )
    return (
        translate("verdict.metric_with_extremes", went=went, extremes="; ".join(phrases))
        if phrases
        else went + "."
    )
