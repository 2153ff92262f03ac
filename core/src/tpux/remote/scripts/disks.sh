# Print how full the disks of this machine are, as `df -P`: that of the home directory, /tmp, and all others that are
# local and writable, the fullest first: a worker with containers has more of them than the file for it has space.
# Of a file system that a network serves, df may never return.
disks() {
    df -Pk -- . /tmp 2>/dev/null
    set --
    while read -r _ place kind options _; do
        case $kind,$options in
            ext*,rw* | xfs,rw* | btrfs,rw* | f2fs,rw* | zfs,rw* | overlay,rw* | tmpfs,rw*) set -- "$@" "$place" ;;
        esac
    done </proc/mounts
    [ $# = 0 ] || df -Pk -- "$@" 2>/dev/null | sort -n -k 4
}
