#!/bin/sh
# Runs the tests, seven at a time: they mostly wait for polls, processes and delays. At most five that fail are run once
# more, one at a time, because a loaded machine can be slower than a test allows; they are named, and each is a bug of
# the test or of what it tests. The argument is the Python to use; others are passed to the first run.
set -u
cd "$(dirname "$0")/.."
python=$1
shift
rm -f .pytest_cache/v/cache/lastfailed
"$python" -m pytest -n 7 --dist loadgroup "$@"
code=$?
[ "$code" -eq 1 ] || exit "$code"
failed=$("$python" -c '
import json
for test in json.load(open(".pytest_cache/v/cache/lastfailed")):
    print(test)
')
count=$(echo "$failed" | wc -l)
if [ "$count" -gt 5 ]; then
    exit "$code"
fi
printf '\nRunning %d failed test(s) once more, one at a time. UNSTEADY if they pass now:\n%s\n' "$count" "$failed"
exec "$python" -m pytest -n 0 --last-failed --last-failed-no-failures=none
