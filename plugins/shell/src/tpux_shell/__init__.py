"""`tpux exec` and `tpux cp`: commands on the workers of a job, and files to and from them."""
