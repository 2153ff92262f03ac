"""`tpux web`: the jobs, their output and their machines on a web page of this machine."""
