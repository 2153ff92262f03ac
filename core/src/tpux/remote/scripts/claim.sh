# Claim this machine for a worker of a job, and print the number of the worker that has it: the one that came first in
# this round of set-up. Set before: id (the job's key), round, worker.
umask 077
# /run is the machine's own, and so is /tmp, which users may write to; a home directory may be shared by machines.
place=${TPUX_MACHINE_DIR:-/run}
[ -w "$place" ] || place=/tmp
read_status Uid
place=$place/.tpux-${value%%[!0-9]*}
[ -d "$place" ] || mkdir "$place" 2>/dev/null
if [ -h "$place" ] || ! [ -O "$place" ]; then
    echo "$place belongs to another user"
    exit 73
fi
exec 9>>"$place/$id" && flock -w 30 9 || exit 74
round_then= holder=
read -r round_then holder <"$place/$id"
if [ "$round_then" != "$round" ]; then
    holder=$worker
    echo "$round $worker" >"$place/$id" || exit 74
fi
echo "tpux-run $holder"
