# Run the program $1 of this directory, and record its exit code. Holds the run's lock (fd 9) until that is done.
dir=${0%/*}

# Caught and not ignored: children inherit ignored signals.
trap : HUP INT QUIT TERM
# In a subshell, or the shell's own "Terminated" would be written to the output.
(
    TPUX_RUN_ID=${dir#.tpux/runs/}
    TPUX_RUN_HOME=$(pwd -P)
    export TPUX_RUN_ID TPUX_RUN_HOME
    exec setsid sh "$dir/$1"
) >>"$dir/output" 2>&1 9>&-
code=$?
# The time, because it is polled later, and of several workers the first to end is the likely cause of the others' end.
printf '%-3s %-20s\n' $code "$(date +%s.%N)" 1<>"$dir/ending"
mv -f "$dir/ending" "$dir/exit"
