"""`tpux rehearse`: preempt a job here; report whether it resumed."""
