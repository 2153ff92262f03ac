"""The run protocol on a worker: one primitive for steps, execs and the command."""

from tpux.runs.protocol import Run as Run
from tpux.runs.protocol import Status as Status
from tpux.runs.protocol import poll as poll
from tpux.runs.protocol import probe as probe
from tpux.runs.protocol import remove as remove
from tpux.runs.protocol import start as start
from tpux.runs.protocol import stop as stop
from tpux.runs.protocol import sweep as sweep
from tpux.runs.protocol import unfinished as unfinished
from tpux.runs.walk import ReplayLog as ReplayLog
from tpux.runs.walk import Walk as Walk
from tpux.runs.walk import dry_run as dry_run
