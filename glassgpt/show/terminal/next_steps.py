"""How to go on after a run has ended, in whatever way."""

from __future__ import annotations

import shlex

from glassgpt.data.dataset import BUILT_IN
from glassgpt.files import expand_user_path
from glassgpt.record.journal import Record


def suggest_next_steps(end: Record, run: Record) -> list[tuple[str, str]]:
    """Lines, each with its label."""
    run = run | ({"out_dir": end["out_dir"]} if "out_dir" in end else {})  # a run that lost its folder
    reason, go_on = end["reason"], _resume_command(run)
    if reason == "not finite":
        return _after_not_finite(end)
    if reason == "interrupted":
        return [("next", f"go on with  {go_on}")]
    if reason == "crashed":
        saved = end.get("last_checkpoint")
        advice = f"go on from {saved} with  {go_on}" if saved else "there is no checkpoint to go on from"
        return [("problem", str(end.get("error", ""))), ("next", advice)]
    if reason == "finished":
        return _after_the_end(run)
    return []


def _after_the_end(run: Record) -> list[tuple[str, str]]:
    more = 2 * run["config"]["max_iters"] if run else "N"
    lines = [
        ("next", f"let it write:      glass sample {_quoted_out_dir(run)}"),
        ("", f"train it longer:   {_resume_command(run)} --max_iters={more}"),
    ]
    if run.get("data", {}).get("name") in BUILT_IN:
        lines.append(("", "on your own text:  glass prepare my.txt   then   glass train --dataset=my"))
    return [*lines, ("", f"see all runs:      {_all_runs(run)}")]


def _all_runs(run: Record) -> str:
    """`glass runs` by itself looks into runs/; a nanoGPT config often says another place."""
    folder = expand_user_path(run.get("out_dir", "runs/RUN")).parent
    return "glass runs" if str(folder) == "runs" else f"glass runs {shlex.quote(str(folder))}"


def _quoted_out_dir(run: Record) -> str:
    return shlex.quote(str(expand_user_path(run.get("out_dir", "RUN"))))


def _resume_command(run: Record) -> str:
    command = f"glass train --init_from=resume --out_dir={_quoted_out_dir(run)}"
    team = run.get("team", {})
    on_one_machine = team and team["size"] == team["per_machine"]
    return f"{command} --nproc={team['size']}" if on_one_machine else command


def _after_not_finite(end: Record) -> list[tuple[str, str]]:
    norms = ", ".join(f"{norm:.3g}" for norm in end["recent_grad_norms"][-5:])
    saved = end["last_checkpoint"]
    return [
        ("problem", f"the loss or gradient of iter {end['bad_iter']:,} was not finite; it was not applied"),
        ("norms", f"the last gradient norms: {norms}"),
        ("next", f"the last good checkpoint is {saved}" if saved else "there is no checkpoint yet"),
        ("", "try a lower --learning_rate, a longer --warmup_iters, or --dtype=float32"),
    ]
