"""The set-up module `ssh`: key pairs and config entries on each worker, and logins from one to another."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tpux import Finding, Job, Sh, Steps, put, sh
from tpux_ssh.inter_worker import KEY_NAME, InterWorkerLogin
from tpux_ssh.keyfiles import KeyFileError, derive_public, inspect_key
from tpux_ssh.section import Identity, SshSection

_BEGIN = "# >>> tpux:"
_END = "# <<< tpux"


def check(job: Job, config: SshSection) -> Steps:
    """Steps that succeed where all files are there with their modes, and the config's block is the one."""
    for pair in config.pairs():
        yield _file_has_mode(pair.private_key, "600")
        if pair.public_key is not None:
            yield _file_has_mode(pair.public_key, "644")
    block = config_block(config, InterWorkerLogin(job) if config.between_workers else None)
    if block:
        yield sh("grep -qxF {line} .ssh/config", line=block.splitlines()[0])
    if config.between_workers:
        yield sh("test -s {key} && grep -qF {mark} .ssh/authorized_keys", key=f".ssh/{KEY_NAME}", mark=KEY_NAME)


def setup(job: Job, config: SshSection) -> Steps:
    """Steps that copy the key pairs, write the block, and open the workers to each other."""
    yield sh("umask 077 && mkdir -p .ssh && chmod 700 .ssh")
    for pair in config.pairs():
        yield put(pair.private_key, f".ssh/{remote_name(pair.private_key)}", mode=0o600)
        if pair.public_key is not None:
            yield put(pair.public_key, f".ssh/{remote_name(pair.public_key)}", mode=0o644)
    peers = InterWorkerLogin(job) if config.between_workers else None
    if peers is not None:
        yield from peers.setup()
    if block := config_block(config, peers):
        yield put(block.encode(), ".ssh/tpux_block")
        yield sh(_REPLACE_BLOCK, begin=_BEGIN, end=_END)


def config_block(config: SshSection, peers: InterWorkerLogin | None) -> str:
    """The lines of ~/.ssh/config that are tpux's; none where there is nothing to say."""
    entries = [pair.config_entry.strip("\n") for pair in config.pairs() if pair.config_entry.strip()]
    body = "\n".join([*([peers.config_entry()] if peers else []), *entries])
    if not body:
        return ""
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    # `Match all` ends a Host section of the user's own before the block, and the block's last one after it.
    return f"{_BEGIN} {digest}; what is written in here is replaced\nMatch all\n{body}\nMatch all\n{_END}\n"


def remote_name(path: Path) -> str:
    """What a file that the config names is called; the copies beside a job have a number before it."""
    number, dash, name = path.name.partition("-")
    return name if path.parent.name == "files" and dash and number.isdecimal() else path.name


def pair_findings(config: SshSection) -> list[Finding]:
    """What is odd about the key pairs that the workers get."""
    return [finding for pair in config.pairs() for finding in _pair_findings(pair)]


def _pair_findings(pair: Identity) -> list[Finding]:
    try:
        if inspect_key(pair.private_key).encrypted:
            message = f"the key {pair.private_key} has a passphrase: nobody can type it on the workers"
            return [Finding("warning", message, where="ssh.identities", hint="name a key without one")]
        if pair.public_key is not None:
            given = " ".join(pair.public_key.read_text().split()[:2])
            if given != derive_public(pair.private_key):
                message = f"{pair.public_key} is not the public half of {pair.private_key}"
                return [Finding("error", message, where="ssh.identities", hint="name the two files of one key")]
    except (KeyFileError, OSError, UnicodeDecodeError) as error:
        return [Finding("error", f"a key cannot be used: {error}", where="ssh.identities")]
    return []


def _file_has_mode(path: Path, mode: str) -> Sh:
    return sh('test "$(stat -c %a {path})" = {mode}', path=f".ssh/{remote_name(path)}", mode=mode)


# The file may be a link into somebody's dotfiles. With one mark alone, which lines are theirs nobody knows.
_REPLACE_BLOCK = """
umask 077
config=$(readlink -f .ssh/config || echo .ssh/config)
[ -e "$config" ] || : >"$config"
if [ "$(grep -cF {begin} "$config")" != "$(grep -cxF {end} "$config")" ]; then
  echo "one of the two lines that begin and end tpux's block is missing in $config: remove the other" >&2
  exit 1
fi
awk -v begin={begin} -v end={end} '
  index($0, begin) == 1 { inside = 1 }
  !inside { print }
  $0 == end { inside = 0 }
' "$config" >"$config.tpux"
cat .ssh/tpux_block >>"$config.tpux"
chmod 600 "$config.tpux"
mv -f "$config.tpux" "$config"
rm -f .ssh/tpux_block
"""
