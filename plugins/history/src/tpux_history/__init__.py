"""`tpux history`: what happened to the jobs, and on what their time was spent."""
