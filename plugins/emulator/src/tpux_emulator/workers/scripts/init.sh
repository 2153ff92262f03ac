#!/bin/sh
# The worker's init: creates host keys and accounts, starts sshd and the startup script, then reaps orphans.
cd /
rmdir /.host 2>/dev/null
here=/usr/lib/tpux-emulator
if [ ! -s /etc/ssh/ssh_host_ed25519_key ]; then
    ssh-keygen -q -t ed25519 -N '' -C "root@$(hostname)" -f /etc/ssh/ssh_host_ed25519_key
fi
/bin/sh $here/accounts.sh < $here/ssh-keys
/usr/sbin/sshd || exit 1
if [ -s $here/startup-script ]; then
    # Executed, not sourced: the script has its own interpreter line.
    (cd /root && HOME=/root exec $here/startup-script) > /var/log/startup-script.log 2>&1 &
fi
while :; do
    sleep 2147483647 &
    wait $!
done
