# Print "+" when a file of the run has changed, and "." from time to time, which says that the worker lives. Set before:
# interval, in seconds; heartbeat, after how many checks without a change a dot is due. It ends with the run, also if that
# is lost, or with the connection, to which it writes.
known=- unchanged=0
while :; do
    # Nanoseconds too: a program that truncates its output may write as much again.
    seen=$(cd "$dir" && stat -c '%n %s %y' output exit notice stopped 2>/dev/null)
    if [ "$seen" != "$known" ]; then
        known=$seen unchanged=0
        printf + || exit
        if [ -e "$dir/exit" ] || ! [ -e "$dir" ]; then exit; fi
    elif [ $((unchanged += 1)) -ge "$heartbeat" ]; then
        unchanged=0
        # A runner that was killed, or is of before a reboot, changes no file.
        held "$dir/lock" && printf . || exit
    fi
    sleep "$interval"
done
