# Look at the run, without touching it. Set before: offset, piece.
report
