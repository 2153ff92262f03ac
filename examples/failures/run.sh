#!/bin/sh
# Run the seven programs one after the other, and print how each job ended. All workers are on this machine.
cd "$(dirname "$0")" || exit 1
for name in out-of-memory lost-peer tpu-busy nan hang finished-then-crash typo; do
    tpux run job.yaml "job.name=$name" >/dev/null 2>&1
    printf '%-20s ' "$name"
    tpux show "$name" --json | python3 -c '
import json, sys
job = json.load(sys.stdin)
failures = [event["failure"] for event in job["events"] if event["type"] == "attempt-ended" and event.get("failure")]
actions = ["solve" if event.get("solve") else event["restart"] for event in job["events"] if event.get("restart")]
kind = failures[0]["kind"] if failures else "-"
line = failures[0]["evidence"] if failures else ""
print("%-14s %-8s %-10s %s" % (kind, actions[0] if actions else "-", job["state"], line))
'
done
