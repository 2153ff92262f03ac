#!/bin/sh
# Boots a worker: the first process in its mount, UTS and PID namespaces. Makes the disk the root file system, then
# executes init.sh.
# Arguments: DISK HOSTNAME SHARED MOUNTPOINT; SHARED, a directory of this machine, need not exist.
set -eu
disk=$1
hostname "$2"
# The worker can read all of this machine's files; what it writes goes to its own disk.
mount -t overlay -o "lowerdir=/,upperdir=$disk/upper,workdir=$disk/work" worker "$disk/root"
cd "$disk/root"
mount -t proc proc proc
cat proc/sys/kernel/random/uuid >run/boot_id # each boot has another one, which the kernel of a real machine knows
mount --bind run/boot_id proc/sys/kernel/random/boot_id
mount -t tmpfs -o mode=755,size=64k dev dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 shm dev/shm
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/full c 1 7
mknod -m 666 dev/random c 1 8
mknod -m 666 dev/urandom c 1 9
mknod -m 666 dev/tty c 5 0
mknod -m 666 dev/fuse c 10 229
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mount -t sysfs sysfs sys 2>/dev/null || true
if [ -d "$3" ]; then
    mkdir -p ".$4"
    mount --bind "$3" ".$4"
fi
mkdir -p .host
pivot_root . .host
umount -l /.host
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /bin/sh /usr/lib/tpux-emulator/init.sh
