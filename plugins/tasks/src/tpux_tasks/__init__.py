"""`tpux tasks`: one job for each task of a file, in the order in which they need each other."""
