"""What docker needs in a sandbox: an image that is made offline, and a runtime for a root without all capabilities."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
PROGRAMS = ("bash", "sh", "sleep", "setsid", "cat", "touch", "env")


def image_layer(programs: Sequence[str] = PROGRAMS, scripts: Mapping[str, str] | None = None) -> bytes:
    """Return a layer, which is a tar archive, for an image.

    Args:
        programs: programs of this machine that it has, with the libraries that they need.
        scripts: the names and texts of scripts that it has in /usr/bin.
    """
    content = io.BytesIO()
    added: set[str] = set()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in programs:
            program = shutil.which(name, path=SYSTEM_PATH) or name
            libraries = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
            for path in [program, *(word for word in libraries.split() if word.startswith("/"))]:
                target = f"usr/bin/{name}" if path == program else path.lstrip("/")
                if target not in added:
                    added.add(target)
                    archive.add(os.path.realpath(path), target)
        for name, text in (scripts or {}).items():
            entry = tarfile.TarInfo(f"usr/bin/{name}")
            entry.size, entry.mode = len(text.encode()), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
        parents = {str(parent) for target in added for parent in PurePosixPath(target).parents}
        for directory in ["root", "tmp", "work", *sorted(parents - {"."})]:
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755 if directory in parents else 0o1777
            archive.addfile(entry)
    return content.getvalue()


# The order is that of their numbers in linux/capability.h.
CAPABILITIES = """chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable
net_bind_service net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct
sys_admin sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap
mac_override mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore"""
# Where root lacks a capability, runc cannot give a container all of them, as --privileged does, nor
# raise limits.
RUNTIME = f"""#!/usr/bin/env python3
import json, os, sys
ALL = ["CAP_" + name.upper() for name in {CAPABILITIES.split()}]
arguments = sys.argv[1:]
for option, path in zip(arguments, arguments[1:]):
    if option in ("--bundle", "--process"):  # of a container, and of a further process in it
        with open("/proc/self/status") as status:
            bound = int(next(line for line in status if line.startswith("CapBnd")).split()[1], 16)
        with open(os.path.join(path, "config.json") if option == "--bundle" else path, "r+") as file:
            config = json.load(file)
            process = config.get("process", config)
            sets = process["capabilities"]
            sets |= {{kind: [name for name in names if bound >> ALL.index(name) & 1] for kind, names in sets.items()}}
            if not bound >> ALL.index("CAP_SYS_RESOURCE") & 1:
                process.pop("rlimits", None)
            file.seek(0)
            file.truncate()
            json.dump(config, file)
os.execvp("runc", ["runc", *arguments])
"""
