# Print how many processes of the run are alive, then the arguments of each, separated by tabs. Zombies have none.
home=$(pwd -P) sudo= count=0 found=
read_status Uid
if [ "${value%%[!0-9]*}" != 0 ] && sudo -n true 2>/dev/null; then sudo='sudo -n'; fi
# Twice: during an exec a process has no environment for a moment.
for pause in 0.1 ''; do
    for file in $($sudo grep -lsxzF "TPUX_RUN_ID=$id" /proc/[0-9]*/environ | xargs -r $sudo grep -lsxzF "TPUX_RUN_HOME=$home"); do
        line=$(tr '\0\t\n' '\t  ' <"${file%environ}cmdline" 2>/dev/null | cut -c 1-300)
        [ -n "$line" ] || continue
        count=$((count + 1))
        found="$found$line
"
    done
    [ $count = 0 ] && [ -n "$pause" ] || break
    sleep "$pause"
done
echo "tpux-run $count"
printf %s "$found"
