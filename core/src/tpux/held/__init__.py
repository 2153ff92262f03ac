"""The machines that jobs hold, for commands and plugins beside the supervisor: they read, and write no job."""
