# Print the runs of a job whose lock is held, as "<attempt>/<name>". Set before: id (the job's key).
set --
for lock in "$dir"/*/*/lock; do
    if held "$lock"; then
        lock=${lock%/lock}
        set -- "$@" "${lock#"$dir"/}"
    fi
done
echo "tpux-run $*"
