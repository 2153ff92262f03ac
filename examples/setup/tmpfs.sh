#!/bin/bash
# Mounts a directory in memory for local checkpoints: tmpfs.sh /mnt/checkpoints 64G
# It is lost at a reboot, so the config needs: check: mountpoint -q /mnt/checkpoints
set -eu
directory=$1 size=$2
if ! mountpoint -q "$directory"; then
    sudo mkdir -p "$directory"
    sudo mount -t tmpfs -o "size=$size,mode=0700,uid=$(id -u),gid=$(id -g)" tmpfs "$directory"
fi
