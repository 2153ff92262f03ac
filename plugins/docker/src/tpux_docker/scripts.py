"""The scripts of the steps (for `sh -e`), and those that Bash runs beside the container and in it."""

from __future__ import annotations

from tpux import Sh, sh
from tpux_worker_tools import apt

SENT = "TPUX_DOCKER_VARIABLE_"
"""The variables that hold NAME=VALUE for the container begin with this, then their number."""

# Sets docker to the command that may be used here, or problem to why there is none. Whoever was added to the group
# docker after the connection was opened is not in it, so sudo is tried too.
_FIND_DOCKER = """
find_docker() {
    docker=docker
    if problem=$(timeout 30 docker version 2>&1 >/dev/null); then return; fi
    docker='sudo -n docker'
    [ "$(id -u)" != 0 ] && timeout 30 sudo -n docker version >/dev/null 2>&1
}

explain() {
    echo "${problem:-no answer within 30 s}"
    if ! command -v docker >/dev/null; then
        echo 'docker is not installed, and installing it needs root or sudo without a password'
    elif [ "$problem" != "${problem#*ermission denied}" ]; then
        echo "$(id -un) may not use docker, and sudo needs a password; as root: usermod -aG docker $(id -un)"
    else
        echo 'the docker daemon does not answer; as root: systemctl status docker'
    fi
}
"""

CHECK = f"""# check docker and the image
{_FIND_DOCKER}
if ! find_docker; then
    explain
    exit 1
fi
$docker image inspect {{image}} >/dev/null
"""

_INSTALL = f"""# find, start or install docker
{_FIND_DOCKER}
if find_docker; then exit; fi
sudo=
if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        explain
        exit 1
    fi
    sudo='sudo -n'
fi
if ! $sudo sh -c 'command -v docker' >/dev/null; then
@apt@
    apt_update
    apt install docker.io
fi
if [ -d /run/systemd/system ]; then $sudo systemctl start docker; else $sudo service docker start; fi || :
for pause in 1 2 4 8 15 ''; do
    if find_docker; then exit; fi
    [ -z "$pause" ] || sleep "$pause"
done
explain
exit 1
"""


def install() -> Sh:
    """Return the step that finds, starts or installs docker."""
    return sh(_INSTALL.replace("@apt@", apt.functions()))


# A token of the VM's service account is used for Google's registries, in a directory that is removed: it is nobody
# else's, and expires. The directory is the user's, also if root puts the token into it: so the user can remove it.
# Where the answer cannot change, the pull is not repeated.
# Source: cloud.google.com/artifact-registry/docs/docker/authentication, "Access token".
PULL = f"""# pull the image
{_FIND_DOCKER}
if ! find_docker; then
    explain
    exit 1
fi
image={{image}}
if $docker image inspect "$image" >/dev/null 2>&1; then
    echo "it is there"
    exit
fi
new=$(mktemp -d)
mkdir "$new/config"
trap 'rm -rf "$new"' EXIT
trap 'exit 143' HUP INT TERM
login() {{
    url=http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token
    token=$(curl -sSf -m 20 -H 'Metadata-Flavor: Google' "$url" | sed -n 's/.*"access_token" *: *"\\([^"]*\\)".*/\\1/p')
    [ -n "$token" ] || return
    printf %s "$token" | $docker --config "$new/config" login -u oauth2accesstoken --password-stdin "https://${{image%%/*}}"
}}
case $image in
    *-docker.pkg.dev/* | gcr.io/* | *.gcr.io/*)
        if login; then
            docker="$docker --config $new/config"
        else
            echo 'there is no service account to log in with; pulling without a login'
        fi
        ;;
esac
for pause in 5 15 45 ''; do
    {{ $docker pull "$image" 2>&1 || echo failed >"$new/failed"; }} | tee "$new/output"
    if ! [ -e "$new/failed" ]; then exit; fi
    rm "$new/failed"
    case $(cat "$new/output") in
        *'manifest unknown'* | *'not found'* | *'not exist'* | *'denied'* | *'nauthorized'* | *'no matching manifest'*)
            echo "the image $image cannot be pulled: check its name and tag, and who may read it"
            exit 1
            ;;
    esac
    [ -n "$pause" ] || break
    echo "trying again in $pause s"
    sleep "$pause"
done
echo "the image $image could not be pulled in four tries: see above"
exit 1
"""

STOP = f"""# stop the container
{_FIND_DOCKER}
if ! find_docker; then
    explain
    exit 1
fi
[ -n "$($docker ps -aq --filter name=^/{{name}}$)" ] || exit 0
$docker stop -t {{grace}} {{name}} >/dev/null 2>&1 || :
$docker rm -f {{name}} >/dev/null 2>&1 || :
"""

# Run by Bash beside the container: $1 is its name, $2 the label of all containers of this worker, $3 the number of its
# variables, $4 the number of the directories that follow, which docker would not create; the rest are the arguments of
# docker. The container's stdin is a pipe that ends only with the client, so the container notices the client's end,
# however it comes. It begins with the variables: in a file they could not contain newlines, and docker would keep those
# of an option on its disk, and show them.
RUN = (
    _FIND_DOCKER
    + """
name=$1 label=$2 count=$3 directories=$4
shift 4
PATH=$PATH:/usr/local/bin:/usr/bin:/bin HOME=$TPUX_RUN_HOME
for directory in "${@:1:directories}"; do
    mkdir -p -- "$directory" || exit 126
done
shift "$directories"
if ! find_docker; then
    explain >&2
    echo 'tpux: docker cannot be used; the command was not run' >&2
    exit 126
fi
for id in $($docker ps -aq --filter "label=$label"); do  # of an earlier attempt that was killed
    $docker rm -f "$id" >/dev/null
done

trap : TERM  # the client passes it on
directory=$(mktemp -d) && mkfifo "$directory/stdin" && exec 3<>"$directory/stdin" || exit 126
rm -r "$directory"
exec 4>&2 2>/dev/null  # Bash reports there which of the two below a signal has ended
$docker "$@" <&3 2>&4 3<&- 4>&- &
client=$!
exec 4>&-
(
    for ((index = 0; index < count; index++)); do
        variable=@SENT@$index
        printf '%s\\0' "${!variable}"
    done
    printf '\\0'
) >&3 &
writer=$!
while
    wait "$client"
    [ -e "/proc/$client" ]  # a signal has ended the wait; not kill -0: with sudo it is another user's process
do :; done
wait "$client"
code=$?
kill "$writer"
[ "$code" -lt 125 ] || $docker rm -f "$name" >/dev/null 2>&1
exit "$code"
""".replace("@SENT@", SENT)
)

# Run by Bash in the container, as its first process; the arguments are the program. It passes SIGTERM on, once, to
# all processes, as a stop does outside of containers; and it ends the container when the client has ended.
INIT = """
program= asked=
forward() {
    [ -z "$asked" ] || return
    asked=1
    [ -n "$program" ] || return
    # Not as in an image's entry point, or with --pid=host, where others would get it too.
    if [ $$ = 1 ]; then kill -s TERM -- -1; else kill -s TERM -- "-$program"; fi
}
trap forward TERM
trap 'exit 137' USR1
while IFS= read -r -d '' variable && [ -n "$variable" ]; do
    export "$variable"
done
exec 3<&0 </dev/null
(
    trap '' TERM
    read -r -u 3
    kill -s USR1 $$
) >/dev/null 2>&1 &
[ -z "$asked" ] || exit 143

# In a process group of its own, and so that it does not ignore SIGINT, as what a script starts with & does. Bash would
# then report its end in the output.
exec 4>&1 >/dev/null 2>&1
set -m
"$@" >&4 2>&1 3<&- 4>&- &
program=$!
while
    wait "$program"
    kill -s 0 "$program"
do :; done
wait "$program"
exit $?
"""
