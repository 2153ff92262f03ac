# Delete the run directories of a job's attempts before $before, and print how many are still running. Then create a
# directory; print the home directory, and why the former could not be created.
# Set before: id (the job's key), before, directory ("" for none).
left=0
set --
for attempt in "$dir"/*/; do
    number=${attempt%/}
    number=${number##*/}
    [ "$number" -lt "$before" ] 2>/dev/null || continue
    running=0
    for run in "$attempt"*/; do
        if ! [ -e "$run/exit" ] && held "$run/lock"; then running=$((running + 1)); fi
    done
    if [ $running = 0 ]; then
        set -- "$@" "$attempt"
        continue
    fi
    left=$((left + running))
    for run in "$attempt"*/; do
        if [ -e "$run/exit" ] || ! held "$run/lock"; then set -- "$@" "$run"; fi
    done
done
[ $# = 0 ] || rm -rf -- "$@"
set -- "$dir"/*
[ -e "$1" ] || [ "$directory" ] || rmdir "$dir" 2>/dev/null # the attempt's is created there next
wrong=
if [ "$directory" ] && ! [ -d "$directory" ]; then
    said=$(mkdir -p -- "$directory" 2>&1) || wrong=${said:-mkdir failed}
fi
cd -P .
printf 'tpux-run %s\n%s\n%s' "$left" "$PWD" "$wrong"
