"""`tpux monitor`: a live view of the jobs and their output."""
