"""`tpux rehearse`: preempt a job on this machine, and report whether its program resumed."""
