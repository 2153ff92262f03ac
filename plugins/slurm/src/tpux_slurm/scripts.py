"""The scripts on the nodes: the batch script, the keeper that it starts on each node, and what the keeper starts.

Whatever a `srun --overlap` step leaves behind ends with that step, where processes are tracked by cgroups. So the step
of a connection is only a relay, two `cat`, and the keeper starts the shell that runs the scripts (`SESSION`).
"""

from __future__ import annotations

import shlex

from tpux_slurm.section import SlurmTpuSection
from tpux_worker_tools.relay import LOOP

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOTICE = 'until [ -e "$TPUX_MACHINE_DIR/.slurm/notice" ]; do sleep 0.2; done; cat "$TPUX_MACHINE_DIR/.slurm/notice"'
"""Waits for the file that the keeper writes when Slurm announces the end of the job's time."""

# A keeper that ends makes the job COMPLETED, so it stays after SIGTERM; SIGUSR2 is from `release`. The directories of
# jobs that were killed have a lock that nobody holds. The FIFO is opened to read and write: neither side waits.
# `running`, which is called in a subshell, does not find its own grep.
_KEEPER = r"""
PATH=$1; export PATH
for command in flock setsid mkfifo grep; do command -v $command >/dev/null || exit 3; done
base=${2:-${TMPDIR:-/tmp}/tpux-$(id -u)}
dir=$base/$SLURM_JOB_ID-$SLURMD_NODENAME
umask 077
mkdir -p "$base" && [ -O "$base" ] || exit 4
for old in "$base"/*-"$SLURMD_NODENAME"; do
  [ -e "$old/.slurm/lock" ] && flock -n "$old/.slurm/lock" rm -rf "$old"
done
mkdir -p "$dir/.slurm" "$dir/tmp" && cd "$dir" && exec 9>.slurm/lock && flock -n 9 || exit 4
running() { unset TPUX_MACHINE_DIR; grep -lsxz "TPUX_MACHINE_DIR=$dir" /proc/[0-9]*/environ | cut -d/ -f3; }
end() {
  trap '' TERM USR2
  for try in 1 2 3 4 5 6 7 8 9; do
    pids=$(running) && [ "$pids" ] || break
    kill -9 $pids 2>/dev/null
    sleep 0.1
  done
  cd / && rm -rf "$dir"
  exit 0
}
trap 'echo "Slurm sent SIGTERM to job $SLURM_JOB_ID on $SLURMD_NODENAME at $(date +%H:%M:%S)" >.slurm/new &&
  mv .slurm/new .slurm/notice' TERM
trap end USR2
trap '' INT HUP USR1
printf '%s' "$4" >.slurm/session && rm -f .slurm/keeper && mkfifo .slurm/new && exec 3<>.slurm/new || exit 4
TPUX_USER_HOME=$3 HOME=$dir TPUX_MACHINE_DIR=$dir TMPDIR=$dir/tmp LANG=C.UTF-8 USER=$(id -un)
LOGNAME=$USER
export TPUX_USER_HOME HOME TPUX_MACHINE_DIR TMPDIR LANG USER LOGNAME
unset SLURM_EXPORT_ENV
mv .slurm/new .slurm/keeper || exit 4
while :; do
  read -r name <&3 || continue
  setsid --fork /bin/sh .slurm/session "$dir/.slurm/$name" </dev/null >/dev/null 2>&1 3>&- 9>&-
done
"""

_SESSION = rf"""
exec <"$1.in" >"$1.out"
rm -f "$1.in" "$1.out"
{LOOP}"""

RELAY = r"""
PATH=$2; export PATH
cd "$1/.slurm" && [ -p keeper ] || { echo "no keeper in $1" >&2; exit 1; }
umask 077
name=relay-$$
rm -f $name.in $name.out
mkfifo $name.in $name.out || exit 1
echo $name 1<>keeper
exec 3<&0
cat <&3 >$name.in &
cat <$name.out
kill $! 2>/dev/null
"""

# It waits on the node, since each step is a request to the controller. What keeps a keeper from starting is found by
# doing the same here: its own words would be in a file of its node.
CHECK = r"""
PATH=$1; export PATH
base=${2:-${TMPDIR:-/tmp}/tpux-$(id -u)}
dir=$base/$SLURM_JOB_ID-$SLURMD_NODENAME
say() { printf '%s|%s|%s\n' "$SLURMD_NODENAME" "$1" "$2"; exit 0; }
for command in flock setsid mkfifo grep; do
  command -v $command >/dev/null || say error "there is no command $command on the node: install util-linux and grep"
done
umask 077
text=$(mkdir -p "$base" 2>&1 && echo x 2>&1 >"$base/.check-$SLURM_JOB_ID") || say error "cannot write to $base: $text"
rm -f "$base/.check-$SLURM_JOB_ID"
[ -O "$base" ] || say error "$base belongs to another user"
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  [ -p "$dir/.slurm/keeper" ] && say ready "$dir"
  sleep 0.2
done
say starting ""
"""

_BATCH = """#!/bin/sh
PATH={path}; export PATH
trap : TERM USR1
{conf}
srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --export=NIL --chdir=/ --mem=0 --cpu-bind=none --mpi=none \\
  --input=none /bin/sh -c {keeper} keeper {node_path} {base} {home} {session} &
while kill -0 $! 2>/dev/null; do wait $!; done
"""


def batch_script(tpu: SlurmTpuSection, variables: dict[str, str], home: str) -> str:
    """Return the batch script.

    Args:
        tpu: the section `tpu`.
        variables: the environment of Slurm's commands.
        home: the user's home directory, for TPUX_USER_HOME.
    """
    conf = shlex.quote(variables.get("SLURM_CONF", ""))
    return _BATCH.format(
        path=shlex.quote(f"{PATH}:{variables['PATH']}"),
        conf=f"[ ! -f {conf} ] || export SLURM_CONF={conf}",
        keeper=shlex.quote(_KEEPER),
        node_path=shlex.quote(PATH),
        base=shlex.quote(tpu.node_directory or ""),
        home=shlex.quote(home),
        session=shlex.quote(_SESSION),
    )


def step(job: str, nodes: int, node: str = "") -> list[str]:
    """Return the beginning of the command that runs something beside the keeper, with no share of the resources."""
    where = ["-w", node] if node else []
    shares = ["--overlap", "--mem=0", "--gres=none", "--mpi=none"]
    return ["srun", *shares, f"--jobid={job}", f"-N{nodes}", f"-n{nodes}", *where, "--export=NIL", "--chdir=/", "-Q"]
