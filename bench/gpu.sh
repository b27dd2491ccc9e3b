#!/usr/bin/env bash
# The GPU rows in order, each within its seconds; what is in the results already is skipped, unless --again.
#
#   bench/gpu.sh --nanogpt PATH --shakespeare FILE --mdn FILE_OR_FOLDER --out results.jsonl [--nanochat PATH]
#   ROWS="gpt2-speed sampling" bench/gpu.sh …     these rows alone
#   LIMIT=600 bench/gpu.sh …                   begin no row that might not end within so many seconds
#
# Everything after the name goes to `python -m bench`. The last line is one JSON document.
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}

# Seconds that a row may take on an H200, peers and cold compile caches included. mdn-to-loss wants the figures
# of gpt2-speed and mdn-rates, and overhead those of the races.
declare -A seconds=(
    [gpt2-speed]=540 [fp8-loss]=900 [shakespeare-whole]=580 [shakespeare-to-loss]=400 [mdn-rates]=590
    [mdn-to-loss]=580 [overhead]=400 [steadiness]=240 [sampling]=480
)
order=${ROWS:-gpt2-speed shakespeare-to-loss mdn-rates mdn-to-loss shakespeare-whole fp8-loss sampling overhead steadiness}

for row in $order; do
    if [ -n "${LIMIT:-}" ] && [ $((SECONDS + ${seconds[$row]})) -gt "$LIMIT" ]; then
        echo "$row: not begun, it may take ${seconds[$row]} s and $((LIMIT - SECONDS)) s are left"
        continue
    fi
    # Each row's table and JSON line are the last row's business.
    timeout --kill-after=10 "${seconds[$row]}" "$python" -m bench "$row" --device cuda "$@" | grep -v -e '^|' -e '^{'
    [[ "${PIPESTATUS[0]}" =~ ^(124|137)$ ]] && echo "$row: took more than its ${seconds[$row]} s"
done
"$python" -m bench table --device cuda "$@"
