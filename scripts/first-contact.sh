#!/bin/sh
# Records what the real Cloud TPU API answers, with the smallest TPUs, in about ten minutes:
#
#     scripts/first-contact.sh DIR --zone ZONE [--project PROJECT] [--type TYPE]
#     scripts/first-contact.sh --delete DIR      delete what an earlier run could not, because it was killed
#
# It needs python3 and a gcloud that is logged in. Before each creation it prints the price and asks. However it ends, it
# deletes what it has created, by the names in DIR/to-delete.jsonl, and ends only once the API answers 404 for each of
# them and lists none. DIR then holds the answers, without identifiers. `make first-contact-check DIR=DIR` lays them
# beside the emulator's answers.
set -u
here=$(dirname "$0")
run() { # ARGUMENT...; takes the place of the shell that calls it, so that `kill` reaches it
    exec "${PYTHON:-python3}" "$here/first_contact.py" "$@"
}
if [ "${1:-}" = --delete ] && [ "$#" -eq 2 ]; then
    run delete "$2"
fi
case ${1:--} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0"; exit 2 ;; esac

recording=
clean_up() {
    code=$?
    trap - EXIT
    # From here on only SIGKILL ends it: a deletion that is interrupted leaves machines that cost money.
    trap '' INT TERM HUP QUIT PIPE
    if [ -n "$recording" ]; then
        kill "$recording" 2> /dev/null
        wait "$recording" 2> /dev/null
    fi
    (run delete "$1") || code=1
    exit "$code"
}
# shellcheck disable=SC2064  # the directory as it is now
trap "clean_up '$(printf '%s' "$1" | sed "s/'/'\\\\''/g")'" EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
trap 'exit 131' QUIT
# In the background, because a shell handles a signal only after the command in its foreground has ended; there, Ctrl-C
# reaches this shell alone. The answers to its questions come from this script's own input.
exec 3<&0
run record "$@" <&3 &
recording=$!
wait "$recording"
code=$?
recording=
exit "$code"
