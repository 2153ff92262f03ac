#!/bin/bash
# Mounts an attached data disk, read-only: data-disk.sh /dev/sdb /mnt/data
# Several workers can read one disk; none may write to it. The config needs: check: mountpoint -q /mnt/data
set -eu
device=$1 directory=$2
if ! [ -b "$device" ]; then
    echo "there is no disk $device on this worker: attach it when the TPU is created (tpu.flags)"
    exit 1
fi
if ! mountpoint -q "$directory"; then
    sudo mkdir -p "$directory"
    sudo mount -o ro,noload "$device" "$directory"
fi
