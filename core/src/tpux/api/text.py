"""Text for people, as core's commands print it: `from tpux.api import text`.

`echo(line)` prints a line of data, `print_table(columns)` a table that fits the terminal, and `paint(text, colour)`
returns text for `echo_painted`, in a colour if stdout is a terminal (`STATE_COLOURS` has those of the states). All of
them remove what could control a terminal. `worker_prefix(index)` is what a line of a worker's output begins with.

`fit(text, width)` cuts text to cells of a terminal, which `cell_width(text)` counts. `format_size(bytes)`,
`format_duration(seconds)`, `format_age(seconds)` and `local_time(at)` are for people; `iso(at)` and
`with_iso_times(event.to_json())` for `--json`. `describe_event(event)` returns an event as a line, and
`RepetitionFilter().is_new(event)` says whether that would repeat an earlier line; `describe_failure(failure)` returns a
failure as one. `start_of(log, lines, after)` is where a log's last lines, or those since a time, begin, and
`newest_times(log)` when which part of it was fetched.
`find_attempts(events, now)` returns how each attempt of a job has spent its time. Since 0.1.
"""

from __future__ import annotations

from tpux.api.attempts import find_attempts as find_attempts
from tpux.api.event_lines import RepetitionFilter as RepetitionFilter
from tpux.api.event_lines import describe_event as describe_event
from tpux.api.event_lines import describe_failure as describe_failure
from tpux.api.times import iso as iso
from tpux.api.times import local_time as local_time
from tpux.api.times import with_iso_times as with_iso_times
from tpux.console import STATE_COLOURS as STATE_COLOURS
from tpux.console import cell_width as cell_width
from tpux.console import echo as echo
from tpux.console import echo_painted as echo_painted
from tpux.console import fit as fit
from tpux.console import format_size as format_size
from tpux.console import paint as paint
from tpux.console import printable as printable
from tpux.console import worker_prefix as worker_prefix
from tpux.durations import format_age as format_age
from tpux.durations import format_duration as format_duration
from tpux.model.program_output import newest_times as newest_times
from tpux.store.output import start_of as start_of
from tpux.tables import print_table as print_table
