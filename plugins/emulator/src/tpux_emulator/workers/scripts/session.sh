#!/bin/sh
# Runs a session on a worker without its own root: the user's shell, in the worker's home directory.
cd "$HOME" || exit 1
shell=${SHELL:-/bin/sh}
case "${SSH_ORIGINAL_COMMAND-}" in
'') exec "$shell" -l ;;
*sftp-server*) exec $SSH_ORIGINAL_COMMAND -d "$HOME" ;;
*) exec "$shell" -c "$SSH_ORIGINAL_COMMAND" ;;
esac
