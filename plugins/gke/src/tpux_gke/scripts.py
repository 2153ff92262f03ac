"""The scripts in a pod: the keeper, which is PID 1, and the wait for a notice of its end."""

from __future__ import annotations

NOTICE = 'until [ -e "$HOME/.tpux-pod/notice" ]; do sleep 0.2; done; cat "$HOME/.tpux-pod/notice"'
"""Waits for the file that the keeper writes when the pod gets SIGTERM."""

# A shell reaps what is reparented to it while it waits. After SIGTERM it stays until nothing that was started by exec
# runs in the pod, so that the program can save and tpux can read its last output: such processes have the container's
# HOME, and the keeper's own children have none. The end of what the programs write goes to its own output, which Cloud
# Logging keeps after the pod is gone.
KEEPER = r"""
home=$HOME dir=$HOME/.tpux-pod term= idle=0 shown= at=0
unset HOME
umask 077
mkdir -p "$dir" || exit 1
rm -f "$dir/notice"
trap 'term=1
  echo "Kubernetes sent SIGTERM to the pod ${HOSTNAME:-} at $(date +%H:%M:%S)" >"$dir/new" &&
    mv -f "$dir/new" "$dir/notice"' TERM
trap '' HUP INT
show() {
  last=
  for output in "$home"/.tpux/runs/*/output; do
    if [ -s "$output" ] && { [ -z "$last" ] || [ "$output" -nt "$last" ]; }; then last=$output; fi
  done
  [ "$last" ] || return
  [ "$last" = "$shown" ] || { shown=$last; at=0; }
  size=$(wc -c <"$last")
  [ $((size - at)) -le 65536 ] && [ "$size" -ge "$at" ] || at=$((size > 65536 ? size - 65536 : 0))
  [ "$size" -eq "$at" ] || tail -c "+$((at + 1))" "$last" | head -c $((size - at))
  at=$size
}
echo "tpux: the pod waits for a job"
while :; do
  sleep 0.5 &
  wait $!
  show
  [ "$term" ] || continue
  if grep -lsxz "HOME=$home" /proc/[0-9]*/environ | grep -qvx "/proc/$$/environ"; then idle=0
  else idle=$((idle + 1))
  fi
  [ "$idle" -lt 3 ] || exit 0
done
"""
