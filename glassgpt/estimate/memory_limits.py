"""How much memory a run may take, by what is known of the machine.

    limit                    of a card or of main memory                     asked by
    process_memory_bytes     what there is for this process                  training, before it refuses a run
    out_of_memory_limit      all that a run can take: more raises an error   plan
    automatic_limit          what choices may fill that nobody asked for     decide, plan, tune, explain

An automatic limit is lower, since an estimate may be too low, and tensors do not fill memory without gaps.
"""

from __future__ import annotations

from glassgpt.estimate.machine_facts import MachineFacts
from glassgpt.estimate.memory import CONTEXT_BYTES

# Of a card that nothing else uses: expandable segments fragment little.
_OUT_OF_MEMORY_SHARE = 0.98
# Where it is not known how much is free: a desktop needs some.
AUTOMATIC_SHARE_OF_TOTAL = 0.94
# Of free memory, without this process's context. On a CPU or a Mac other programs share it.
_AUTOMATIC_SHARE_OF_FREE = {"cuda": 0.92, "mps": 0.85, "cpu": 0.85}


def out_of_memory_limit(device_type: str, total_bytes: int) -> int:
    """Elsewhere than on a card nothing raises an error: the machine swaps, so the automatic limit holds."""
    if device_type != "cuda":
        return automatic_limit_of_total(total_bytes)
    return int(total_bytes * _OUT_OF_MEMORY_SHARE)


def automatic_limit(facts: MachineFacts) -> int | None:
    """The limit, which includes the CUDA context; None: not known."""
    if facts.free_bytes is not None:  # without the context, which exists already
        return automatic_limit_of_free("cuda", facts.free_bytes) + CONTEXT_BYTES["cuda"]
    return None if facts.memory_bytes is None else automatic_limit_of_total(facts.memory_bytes)


def automatic_limit_of_total(total_bytes: int) -> int:
    return int(AUTOMATIC_SHARE_OF_TOTAL * total_bytes)


def automatic_limit_of_free(device_type: str, free_bytes: int) -> int:
    """The limit, without the CUDA context."""
    return int(_AUTOMATIC_SHARE_OF_FREE[device_type] * free_bytes)


def process_memory_bytes(facts: MachineFacts) -> int:
    """Of a card: what is free and this process's context. Of main memory: its share among the processes of
    this machine."""
    if facts.free_bytes is not None:
        return facts.free_bytes + CONTEXT_BYTES["cuda"]
    assert facts.memory_bytes is not None, "training measures it"
    return facts.memory_bytes
