"""The module `ssh`: steps that install key pairs and ~/.ssh/config entries on each worker."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

from tpux import Finding, Job, Sh, Steps, put, sh
from tpux_ssh.inter_worker import KEY_NAME, KNOWN_HOSTS_NAME, InterWorkerLogin, may_log_in
from tpux_ssh.keyfiles import KeyFileError, derive_public, inspect_key
from tpux_ssh.section import Identity, SshSection

_BEGIN = "# >>> tpux:"
_END = "# <<< tpux"
INSTALLED = ".tpux/ssh/installed"
"""A list on the workers: files in ~/.ssh that tpux has put there, each after the key of a job that uses it.

`/DIGEST` stands for the block of that digest in ~/.ssh/config, `/` for none: each job that the module sets up has such
a line.
"""


def check(job: Job, config: SshSection) -> Steps:
    """Check that all files exist with their modes and that the block in ~/.ssh/config is current."""
    lines: list[str] = []
    for pair in config.pairs():
        lines.append(_has_mode(pair.private_key, "600"))
        if pair.public_key is not None:
            lines.append(_has_mode(pair.public_key, "644"))
    between_workers = may_log_in(job, config)
    block = config_block(config, InterWorkerLogin(job) if between_workers else None)
    if _is_borrowed(job) and (config.pairs() or between_workers):
        # All of it may be there for another job, which removes it at its end.
        listed = sh("grep -qxF -e {line} {list}", line=f"{job.key} {_block_name(block)}", list=INSTALLED)
        lines.append(_unless(listed, "the keys and entries there are not this job's"))
    if block:
        current = sh("grep -qxF {line} .ssh/config", line=block.splitlines()[0])
        lines.append(_unless(current, "the entries of the job in ~/.ssh/config are missing, or others"))
    if between_workers:
        test = "test -s {key} && grep -qF {comment} .ssh/authorized_keys"
        enabled = sh(test, key=f".ssh/{KEY_NAME}", comment=KEY_NAME)
        lines.append(_unless(enabled, "the workers cannot log in to each other"))
    if lines:
        yield Sh("\n".join(["# check the keys and the config entries", *lines]))


def setup(job: Job, config: SshSection) -> Steps:
    """Copy the key pairs, enable logins between the workers, and write the block in ~/.ssh/config."""
    yield sh("umask 077 && mkdir -p .ssh && chmod 700 .ssh")
    inter_worker = InterWorkerLogin(job) if may_log_in(job, config) else None
    block = config_block(config, inter_worker)
    if files := _installed(job, config, block):
        yield sh(_NOTE_FILES, list=INSTALLED, job=job.key, files=files)
    for pair in config.pairs():
        yield put(pair.private_key, f".ssh/{remote_name(pair.private_key)}", mode=0o600)
        if pair.public_key is not None:
            yield put(pair.public_key, f".ssh/{remote_name(pair.public_key)}", mode=0o644)
    if inter_worker is not None:
        yield from inter_worker.setup()
    if block:
        yield put(block.encode(), _block_file(job))
        yield sh(
            _REPLACE_BLOCK,
            list=INSTALLED,
            job=job.key,
            shared="yes" if _is_borrowed(job) else "",
            digest=_block_name(block).removeprefix("/"),
            block=_block_file(job),
            first=block.splitlines()[0],
            begin=_BEGIN,
            end=_END,
        )


def clean_up(job: Job) -> Steps:
    """Remove the keys and config entries that no other job uses from a machine that tpux has not created."""
    if _is_borrowed(job):
        block = _block_file(job)
        yield sh(_REMOVE, list=INSTALLED, job=job.key, block=block, key=KEY_NAME, begin=_BEGIN, end=_END)


def _block_file(job: Job) -> str:
    """Return where the job's block is on a worker before it is in ~/.ssh/config: others may share the machine."""
    return f".ssh/tpux_block.{job.key}"


def _is_borrowed(job: Job) -> bool:
    from tpux.api.machines import allocation_of

    allocation = allocation_of(job)
    return allocation is not None and allocation.borrowed


def _installed(job: Job, config: SshSection, block: str) -> list[str]:
    """Return what the set-up installs: lines of a digest, a space, and a name in the list.

    The digest is that of the content which a file of the user's may have; `-` if any may be replaced, on machines that
    tpux has created; and `+` if only tpux uses the name.
    """
    borrowed = _is_borrowed(job)
    paths = [path for pair in config.pairs() for path in (pair.private_key, pair.public_key) if path is not None]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() if borrowed else "-" for path in paths]
    files = [f"{digest} {remote_name(path)}" for digest, path in zip(digests, paths, strict=True)]
    own = [KEY_NAME, KNOWN_HOSTS_NAME] if may_log_in(job, config) else []
    return [*files, *(f"+ {name}" for name in own), f"+ {_block_name(block)}"] if files or own else []


def _block_name(block: str) -> str:
    """Return the name of a job's block of ~/.ssh/config in the list."""
    return "/" + block.partition(";")[0].removeprefix(_BEGIN).strip()


def config_block(config: SshSection, inter_worker: InterWorkerLogin | None) -> str:
    """Return tpux's block of ~/.ssh/config; '' if there are no entries."""
    entries = [pair.config_entry.strip("\n") for pair in config.pairs() if pair.config_entry.strip()]
    body = "\n".join([*([inter_worker.config_entry()] if inter_worker else []), *entries])
    if not body:
        return ""
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    # `Match all` ends the user's Host section before the block, and the block's own last section.
    return f"{_BEGIN} {digest}; changes inside this block are overwritten\nMatch all\n{body}\nMatch all\n{_END}\n"


def remote_name(path: Path) -> str:
    """Return the name of a key file on the workers: without the number that the job's copy has as a prefix."""
    number, dash, name = path.name.partition("-")
    return name if path.parent.name == "files" and dash and number.isdecimal() else path.name


def identity_findings(config: SshSection) -> list[Finding]:
    """Return the problems with the key pairs to copy to the workers."""
    return [finding for pair in config.pairs() for finding in _findings_of(pair)]


def _findings_of(pair: Identity) -> list[Finding]:
    try:
        if inspect_key(pair.private_key).encrypted:
            message = f"the key {pair.private_key} has a passphrase, so the workers cannot use it unattended"
            return [Finding("warning", message, where="ssh.identities", hint="use a key without a passphrase")]
        if pair.public_key is not None:
            given = " ".join(pair.public_key.read_text().split()[:2])
            if given != derive_public(pair.private_key):
                message = f"{pair.public_key} is not the public key of {pair.private_key}"
                return [Finding("error", message, where="ssh.identities", hint="use the two files of one key pair")]
    except (KeyFileError, OSError, UnicodeDecodeError) as error:
        return [Finding("error", f"cannot use a key: {error}", where="ssh.identities")]
    return []


def _has_mode(path: Path, mode: str) -> str:
    name = f".ssh/{remote_name(path)}"
    test = sh('test "$(stat -c %a {path} 2>/dev/null)" = {mode}', path=name, mode=mode)
    return _unless(test, f"~/{name} is missing, or its mode is not {mode}")


def _unless(test: Sh, problem: str) -> str:
    """Return a line of a script that ends it with a problem, unless the test succeeds."""
    return f"{test.script} || {{ echo {shlex.quote(problem)}; exit 1; }}"


# A file that was there before is the user's own, and stays. Two jobs that share a machine may use the same files.
_NOTE_FILES = """# note which files are tpux's
umask 077
job={job}
mkdir -p .tpux/ssh
exec 9>>{list}.lock
flock -w 60 9
touch {list}
for file in {files}; do
  digest=${file%% *} name=${file#* }
  if [ "$digest" != + ] && [ -e ".ssh/$name" ] && ! cut -d ' ' -f 2- {list} | grep -qxF -e "$name"; then
    if [ "$digest" != - ] && [ "$(sha256sum <".ssh/$name")" != "$digest  -" ]; then
      echo "~/.ssh/$name is not from tpux and has other content than the file in ssh.identities:" \\
        "rename one of the two, or remove the file from this machine"
      exit 1
    fi
    continue
  fi
  if ! grep -qxF -e "$job $name" {list}; then echo "$job $name" >>{list}; fi
done
"""

# A failed write, as on a full disk, ends the script before a file is replaced: grep exits with 1 if no line is left.
# The list is replaced last, so that a repetition removes what an interrupted one has not.
_REMOVE = """# remove the job's keys
umask 077
rm -f {block}
[ -e {list} ] || exit 0
exec 9>>{list}.lock
flock -w 20 9
awk -v job={job} '$1 == job' {list} | cut -d ' ' -f 2- >{list}.own
awk -v job={job} '$1 != job' {list} >{list}.others
is_last_user() {
  grep -qxF -e "$1" {list}.own && ! cut -d ' ' -f 2- {list}.others | grep -qxF -e "$1"
}
keys=$(readlink -f .ssh/authorized_keys || echo .ssh/authorized_keys)
if [ -e "$keys" ] && is_last_user {key}; then
  grep -v {key} "$keys" >"$keys.tpux" || [ $? = 1 ]
  chmod 600 "$keys.tpux"
  mv -f "$keys.tpux" "$keys"
fi
config=$(readlink -f .ssh/config || echo .ssh/config)
own='' # the blocks that no other job uses
for digest in $(sed -n 's,^/\\([0-9a-f]\\),\\1,p' {list}.own); do
  if is_last_user "/$digest"; then own="$own $digest "; fi
done
if [ -n "$own" ] && grep -qF -e {begin} "$config" 2>/dev/null && grep -qxF -e {end} "$config"; then
  awk -v begin={begin} -v end={end} -v own="$own" '
    index($0, begin) == 1 { inside = index(own, " " substr($4, 1, length($4) - 1) " ") }
    !inside { print }
    $0 == end { inside = 0 }
  ' "$config" >"$config.tpux"
  chmod 600 "$config.tpux"
  mv -f "$config.tpux" "$config"
fi
while IFS= read -r name; do
  case $name in /*) continue ;; esac
  if is_last_user "$name"; then rm -f -- ".ssh/$name"; fi
done <{list}.own
mv -f {list}.others {list}
rm -f {list}.own
"""

# The file may be a symbolic link. If one delimiter is missing, the user's lines cannot be told from tpux's. On machines
# that jobs share, the blocks of the others stay, after the new one: ssh takes the first value that it finds.
_REPLACE_BLOCK = """
umask 077
mkdir -p .tpux/ssh
exec 9>>{list}.lock
flock -w 60 9
config=$(readlink -f .ssh/config || echo .ssh/config)
if ! [ -e {block} ] && grep -qxF -e {first} "$config"; then
  exit 0 # another worker with this home directory has written it
fi
[ -e "$config" ] || : >"$config"
if [ "$(grep -cF {begin} "$config")" != "$(grep -cxF {end} "$config")" ]; then
  echo "the first or the last line of tpux's block is missing in $config: remove the other one" >&2
  exit 1
fi
others=
if [ -n {shared} ] && [ -e {list} ]; then
  others=$(awk -v job={job} -v own={digest} '
    $1 != job && $2 ~ "^/." && $2 != "/" own { printf " %s ", substr($2, 2) }' {list})
fi
awk -v begin={begin} -v end={end} -v block={block} -v others="$others" '
  function add() { while (!added && (getline line <block) > 0) print line; added = 1 }
  index($0, begin) == 1 { inside = !index(others, " " substr($4, 1, length($4) - 1) " "); if (!inside) add() }
  !inside { print }
  $0 == end { inside = 0 }
  END { add() }
' "$config" >"$config.tpux"
grep -qxF -e {first} "$config.tpux"
chmod 600 "$config.tpux"
mv -f "$config.tpux" "$config"
rm -f {block}
"""
