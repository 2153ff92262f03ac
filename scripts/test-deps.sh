#!/bin/sh
# What the tests need from the system's packages: real SSH servers and what their workers' users expect there.
# Run again it does nothing. As root on Debian or Ubuntu it installs what is missing; elsewhere it says what that is.
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
need ss iproute2
need useradd passwd
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    # An index of yesterday may name packages that are gone; one try with it saves a minute when it does not.
    # shellcheck disable=SC2086
    apt-get install -qq --no-install-recommends $missing > /dev/null 2>&1 || {
        apt-get update -qq
        apt-get install -qq --no-install-recommends $missing > /dev/null
    }
    exit 0
fi
echo "tests that need these packages are skipped:$missing" >&2
