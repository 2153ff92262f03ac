# Print how full the disks of this machine are, as `df -P`: that of the home directory, /tmp, and all others that are
# local and writable, those with the least space first: a worker with containers has more of them than the file for the
# list has space. Of a file system that a network serves, df may never return.
disks() {
    set -- . /tmp
    while read -r _ place kind options _; do
        case $kind,$options in
            ext*,rw* | xfs,rw* | btrfs,rw* | f2fs,rw* | zfs,rw* | overlay,rw* | tmpfs,rw*) set -- "$@" "$place" ;;
        esac
    done </proc/mounts
    df -Pk -- "$@" 2>/dev/null | {
        for _ in title . /tmp; do IFS= read -r line && printf '%s\n' "$line"; done
        sort -n -k 4
    }
}
