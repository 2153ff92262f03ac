#!/bin/sh
# Updates the accounts of a worker, as the guest agent of Google's images does.
# Input: the `ssh-keys` metadata, lines of USER:TYPE KEY COMMENT. Keys that users added themselves are kept.
set -eu
state=/var/lib/google/accounts
mark='# Added by Google'
mkdir -p $state
touch $state/users
cat > $state/keys
sed -n 's/^\([A-Za-z_][-A-Za-z0-9_.]*\):.*/\1/p' $state/keys | sort -u > $state/wanted

write_keys() { # USER HOME
    install -d -m 700 -o "$1" -g "$(id -g "$1")" "$2/.ssh"
    touch "$2/.ssh/authorized_keys"
    {
        awk -v mark="$mark" '$0 == mark { getline; next } { print }' "$2/.ssh/authorized_keys"
        awk -v user="$1:" -v mark="$mark" 'index($0, user) == 1 { print mark; print substr($0, length(user) + 1) }' \
            $state/keys
    } > "$2/.ssh/authorized_keys.new"
    chmod 600 "$2/.ssh/authorized_keys.new"
    chown "$1:$(id -g "$1")" "$2/.ssh/authorized_keys.new"
    mv "$2/.ssh/authorized_keys.new" "$2/.ssh/authorized_keys"
}

groups=google-sudoers
for group in adm video docker; do
    if grep -q "^$group:" /etc/group; then groups=$groups,$group; fi
done
grep -q '^google-sudoers:' /etc/group || groupadd --system google-sudoers
sort -u $state/wanted $state/users | while read -r user; do
    entry=$(grep "^$user:" /etc/passwd || true)
    if [ -z "$entry" ]; then
        useradd --create-home --shell /bin/bash --password '*' --groups "$groups" "$user"
        entry=$(grep "^$user:" /etc/passwd)
    fi
    home=${entry%:*}
    write_keys "$user" "${home##*:}"
done
mv $state/wanted $state/users
