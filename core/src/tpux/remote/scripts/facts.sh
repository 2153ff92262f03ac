# Print what is left of memory and of disks, in KiB, and the mounts that do not answer.
# Set before: paths (one per line, relative to the home directory or absolute), mounts (1 also checks these).
echo "tpux-run facts"
while read -r name size _; do
    case $name in MemTotal: | MemAvailable:) printf 'memory\t%s\t%s\n' "$name" "$size" ;; esac
done </proc/meminfo

# A remote file system may hang.
echo "$paths" | while IFS= read -r path; do
    [ -d "$path" ] || continue
    timeout 5 df -Pk -- "$path" 2>/dev/null | while read -r device size _ free _ at; do
        case $size in *[!0-9]* | '') ;; *) printf 'disk\t%s\t%s\t%s\t%s\n' "$device" "$size" "$free" "$at" ;; esac
    done
done

[ "$mounts" = 1 ] || exit 0
while read -r device at type _; do
    case $type in fuse | fuse.* | nfs | nfs4) ;; *) continue ;; esac
    case $type in fuse.lxcfs | fuse.snapfuse | fuse.portal) continue ;; esac
    at=$(printf '%b' "$at")
    problem=$(timeout 5 stat -f -- "$at" 2>&1 >/dev/null) && problem= || problem=${problem:-'no answer within 5 s'}
    printf 'mount\t%s\t%s\t%s\t%s\n' "$device" "$at" "$type" "$problem"
done </proc/mounts
