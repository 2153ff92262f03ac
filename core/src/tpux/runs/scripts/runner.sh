# Run the program, holding the run's lock (fd 9) until the exit code is in place.
# $1: the run's directory, $2: its id, $3: the program, which removes itself.

# Caught and not ignored: what a shell ignores, its children ignore too.
trap : HUP INT QUIT TERM
# In brackets, or the shell's own "Terminated" would be written to the output.
(
    export TPUX_RUN_ID="$2"
    exec setsid sh "$3"
) >>"$1/output" 2>&1 9>&-
printf '%-3s\n' $? 1<>"$1/ending"
mv -f "$1/ending" "$1/exit"
