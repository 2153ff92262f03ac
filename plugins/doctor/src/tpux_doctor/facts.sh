# Print what is left of memory and of disks, in KiB, and the mounts that do not answer.
# One per line, relative to the home directory or absolute:
paths={paths}
# Absolute ones that are left out if a remote file system is mounted there:
local_paths={local_paths}
# 1 also checks these:
mounts={mounts}

while read -r name size _; do
    case $name in MemTotal: | MemAvailable:) printf 'memory\t%s\t%s\n' "$name" "$size" ;; esac
done </proc/meminfo || :

is_remote_type() {
    case $1 in fuse.lxcfs | fuse.snapfuse | fuse.portal) return 1 ;; esac
    case $1 in fuse | fuse.* | nfs | nfs4 | cifs | smb3 | 9p | lustre | ceph) ;; *) return 1 ;; esac
}

# True if the path $1 is on a remote file system: the last one that is mounted at the longest path above it.
is_remote() {
    above= found=
    while read -r _ at type _; do
        case $at in *\\*) at=$(printf '%b' "$at") ;; esac
        case ${1%/}/ in "${at%/}"/*) ;; *) continue ;; esac
        if [ ${#at} -ge ${#above} ]; then above=$at found=$type; fi
    done </proc/mounts
    is_remote_type "$found"
}

local_paths() {
    echo "$local_paths" | while IFS= read -r path; do
        if [ -n "$path" ] && ! is_remote "$path"; then printf '%s\n' "$path"; fi
    done
}

# Print the output of a command, for at most 7 s. A process that waits for a file system's server cannot always be
# killed: nothing waits for it, and the pipe that it keeps open is read for as long only.
ask() {
    { timeout 5 "$@" </dev/null 2>/dev/null & } | timeout 7 cat
}

# A remote file system may hang, also one to which a link leads: nothing but df looks at a path.
{ echo "$paths" && local_paths; } | while IFS= read -r path; do
    ask df -Pk -- "$path" | while read -r device size _ free _ at; do
        case $size in *[!0-9]* | '') ;; *) printf 'disk\t%s\t%s\t%s\t%s\n' "$device" "$size" "$free" "$at" ;; esac
    done
done

[ "$mounts" = 1 ] || exit 0
while read -r device at type _; do
    is_remote_type "$type" || continue
    at=$(printf '%b' "$at")
    problem=$(ask sh -c 'stat -f -- "$1" 2>&1 >/dev/null && echo answers' - "$at")
    case $problem in answers) problem= ;; '') problem='no answer within 5 s' ;; esac
    printf 'mount\t%s\t%s\t%s\t%s\n' "$device" "$at" "$type" "$problem"
done </proc/mounts
