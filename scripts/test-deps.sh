#!/bin/sh
# Installs the system packages that the tests need (an SSH server, docker, Slurm, FUSE mounts, a browser, tools of the emulated workers).
# Does nothing if all are present. Installs missing ones as root on Debian or Ubuntu, and lists them elsewhere.
set -eu
missing=
need() { # COMMAND PACKAGE
    PATH="$PATH:/usr/sbin:/sbin" command -v "$1" > /dev/null 2>&1 || missing="$missing $2"
}
need sshd openssh-server
need ssh openssh-client
need ssh-keygen openssh-client
need unshare util-linux
need nsenter util-linux
need pivot_root util-linux
need ip iproute2
need sudo sudo
need curl curl
need pgrep procps
need tmux tmux
need tc iproute2
need iptables iptables
need ss iproute2
need useradd passwd
need dockerd docker.io
need rclone rclone
need sbatch slurm-wlm
need slurmctld slurm-wlm
need munged munge
need fusermount3 fuse3
need chromium chromium
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    # Try the existing package index first: updating it takes up to a minute. It may be outdated, hence the retry.
    # shellcheck disable=SC2086
    apt-get install -qq --no-install-recommends $missing > /dev/null 2>&1 && exit 0
    apt-get update -qq || true
    wanted=$missing missing=
    for package in $wanted; do # one that this distribution does not have is not in the way of the others
        apt-get install -qq --no-install-recommends "$package" > /dev/null || missing="$missing $package"
    done
    [ -n "$missing" ] || exit 0
fi
echo "tests that need these packages are skipped:$missing" >&2
