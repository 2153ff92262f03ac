#!/bin/bash
# Mounts an NFS share, such as Filestore: nfs.sh 10.0.0.2:/share /mnt/share
# The config needs: check: mountpoint -q /mnt/share
set -eu
share=$1 directory=$2
if ! command -v mount.nfs > /dev/null; then
    sudo apt-get update -q
    sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 install nfs-common
fi
if ! mountpoint -q "$directory"; then
    sudo mkdir -p "$directory"
    sudo mount -t nfs -o rw,hard,timeo=600 "$share" "$directory"
fi
