"""`tpux sweep`: one job for each point of a grid of arguments."""
