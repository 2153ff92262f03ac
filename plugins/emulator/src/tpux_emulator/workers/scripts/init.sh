#!/bin/sh
# The worker's first process: host keys, accounts, sshd, the startup script; then it collects orphans.
cd /
rmdir /.host 2>/dev/null
here=/usr/lib/tpux-emulator
if [ ! -s /etc/ssh/ssh_host_ed25519_key ]; then
    ssh-keygen -q -t ed25519 -N '' -C "root@$(hostname)" -f /etc/ssh/ssh_host_ed25519_key
fi
/bin/sh $here/accounts.sh < $here/ssh-keys
/usr/sbin/sshd || exit 1
if [ -s $here/startup-script ]; then
    # A script may name its own interpreter; one that names none is the shell's.
    (cd /root && HOME=/root exec $here/startup-script) > /var/log/startup-script.log 2>&1 &
fi
while :; do
    sleep 2147483647 &
    wait $!
done
