"""How to go on after a run has ended, in whatever way."""

from __future__ import annotations

import shlex
from typing import Any

from glassgpt.account.journal import Record


def what_next(end: Record, run: Record) -> list[tuple[str, str]]:
    place = run.get("out_dir", "RUN")
    go_on = f"glass train --init_from=resume --out_dir={shlex.quote(str(place))}"
    team = run.get("team", {})
    if team and team["size"] == team["per_machine"]:
        go_on += f" --nproc={team['size']}"
    reason = end["reason"]
    if reason == "not finite":
        norms = ", ".join(f"{norm:.3g}" for norm in end["recent_grad_norms"][-5:])
        saved = end["last_checkpoint"]
        return [
            (
                "problem",
                f"the loss or gradient of iter {end['bad_iter']:,} was not finite; it was not applied",
            ),
            ("norms", f"the last gradient norms: {norms}"),
            ("next", f"the last good checkpoint is {saved}" if saved else "there is no checkpoint yet"),
            ("", "try a lower --learning_rate, a longer --warmup_iters, or --dtype=float32"),
        ]
    if reason == "interrupted":
        return [("next", f"go on with  {go_on}")]
    if reason == "crashed":
        saved = end.get("last_checkpoint")
        advice = f"go on from {saved} with  {go_on}" if saved else "there is no checkpoint to go on from"
        return [("problem", str(end.get("error", ""))), ("next", advice)]
    if reason == "finished":
        more: Any = 2 * run["config"]["max_iters"] if run else "N"
        return [
            ("next", f"train it longer:  {go_on} --max_iters={more}"),
            ("", "on your own text:  glass prepare my.txt   then   glass train --dataset=my"),
            ("", "see all runs:      glass runs"),
        ]
    return []
