#!/bin/sh
# Replaces a running worker's host key, as if the machine had been rebuilt at the same address.
set -eu
key=$1/ssh_host_ed25519_key
rm -f "$key" "$key.pub"
ssh-keygen -q -t ed25519 -N '' -C rotated -f "$key"
