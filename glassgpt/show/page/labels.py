"""The words of the page's own controls, in the current language: a key that the scripts know -> its text."""

from __future__ import annotations

from glassgpt.i18n import say, translate

_LABELS = (  # the key is what follows the dot
    say("page.add_run"), say("page.ask"), say("page.asked_save"), say("page.asked_stop"),
    say("page.attention_caption"), say("page.baseline"), say("page.bell"), say("page.best"),
    say("page.bits_per_byte"), say("page.cancel"), say("page.chart_menu"), say("page.checkpoint"),
    say("page.close"), say("page.column_best_val"), say("page.column_compare"),
    say("page.column_last_loss"), say("page.column_modified"), say("page.column_name"),
    say("page.column_spark"), say("page.column_state"), say("page.column_tokens_per_s"),
    say("page.column_updates"), say("page.compare"), say("page.compare_hint"), say("page.compare_with"),
    say("page.connection_lost"), say("page.copied"), say("page.copy"), say("page.details"),
    say("page.filter"), say("page.footer_live"), say("page.head"), say("page.heads"), say("page.in_total"),
    say("page.induction"), say("page.it_expected"), say("page.keep"), say("page.keys"),
    say("page.keys_text"), say("page.ladder"), say("page.ladder_caption"), say("page.layer"),
    say("page.learned"), say("page.live"), say("page.loading_model"), say("page.log_x"), say("page.log_y"),
    say("page.look_inside"), say("page.loss"), say("page.nats"), say("page.next_token"),
    say("page.no_findings_yet"), say("page.no_runs"), say("page.not_drawn"), say("page.nothing_special"),
    say("page.off"), say("page.partly_known"), say("page.passage"), say("page.passed_at"),
    say("page.point_at_token"), say("page.previous_token"), say("page.prompt"), say("page.reading_file"),
    say("page.really_save"), say("page.really_stop"), say("page.remove"), say("page.reset_zoom"),
    say("page.runs"), say("page.samples"), say("page.samples_of_run"), say("page.save"), say("page.seed"),
    say("page.setting"), say("page.smoothing"), say("page.stop"), say("page.temperature"),
    say("page.time_strip"), say("page.tokens"), say("page.uniform"), say("page.update"), say("page.view"),
    say("page.what_it_knows"), say("page.whole_plan"), say("page.why"), say("page.write"),
    say("page.writing"), say("page.x_axis"),
)  # fmt: skip


def page_labels() -> dict[str, str]:
    return {message.key.partition(".")[2]: str(message) for message in _LABELS} | {
        "charts": translate("report.charts.title"),
        "difference_in_nats": translate("look_view.passage.difference_legend"),
        "findings": translate("report.findings.title"),
        "footer_offline": translate("report.footer"),
        "loss_in_nats": translate("look_view.passage.legend"),
        "no_findings": translate("report.findings.none"),
        "theme": translate("report.theme_button"),
        "time": translate("report.time.title"),
        "what_to_do": translate("report.what_to_do"),
    }
