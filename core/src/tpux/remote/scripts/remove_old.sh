# Delete the run directories of a job's attempts before $before, and print how many are still running.
# Set before: id (the job's key), before.
left=0
for attempt in "$dir"/*/; do
    number=${attempt%/}
    number=${number##*/}
    [ "$number" -lt "$before" ] 2>/dev/null || continue
    set --
    for run in "$attempt"*/; do
        if held "$run/lock"; then left=$((left + 1)); else set -- "$@" "$run"; fi
    done
    [ $# = 0 ] || rm -rf -- "$@"
    rmdir "$attempt" 2>/dev/null
done
rmdir "$dir" 2>/dev/null
echo "tpux-run $left"
