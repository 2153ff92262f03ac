"""What cron runs: start a supervisor if none runs, a job needs one, and the user has not stopped it."""

from tpux.api import supervisor

supervisor.start_if_needed()
