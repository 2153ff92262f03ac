#!/bin/sh
# Gives a running worker another host key, as a machine that was rebuilt behind the same address has.
set -eu
key=$1/ssh_host_ed25519_key
rm -f "$key" "$key.pub"
ssh-keygen -q -t ed25519 -N '' -C rekeyed -f "$key"
