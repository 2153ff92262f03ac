# Report the state of the run without changing anything. Set before: offset, chunk_size.
report
