"""Job ids under many processes: unique and without gaps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tpux.model.events import Created
from tpux.store import Files, Store, files


def build(job: str) -> tuple[Files, Created]:
    return {"config.yaml": (b"", 0o600)}, Created(id=job, user="me", name="n")


CREATOR = """
import sys
from pathlib import Path
from tpux.model.events import Created
from tpux.store import Store

def build(job):
    return {"config.yaml": (b"", 0o600)}, Created(id=job, user=store.user, name="n")

store = Store(Path(sys.argv[1]), sys.argv[2])
for _ in range(30):
    print(store.create(build, at=1.0).directory.name)
"""


@pytest.mark.system
def test_sixteen_processes_create_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CREATOR, str(tmp_path)]
    creators = [
        subprocess.Popen([*command, f"user{number % 3}"], stdout=subprocess.PIPE, text=True) for number in range(16)
    ]
    created = sorted(job for process in creators for job in process.communicate(timeout=100)[0].split())
    assert created == [f"{number:06d}" for number in range(1, 481)]
    assert sorted(job for user in Store(tmp_path).users() for job in Store(tmp_path).ids(user)) == created


def test_a_failed_creation_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, "me")

    def fail(job: str) -> tuple[Files, Created]:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.create(fail, at=1.0)
    assert list((tmp_path / "jobs/me").iterdir()) == []
    assert store.create(build, at=1.0).directory.name == "000001"


def test_a_counter_that_cannot_be_written_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, write_atomic = Store(tmp_path, "me"), files.write_atomic

    def fail(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
        if path.name == "next_id":
            raise OSError(28, "No space left on device")
        write_atomic(path, content, mode=mode, durable=durable)

    monkeypatch.setattr(files, "write_atomic", fail)
    assert [store.create(build, at=1.0).directory.name for _ in range(3)] == ["000001", "000002", "000003"]


def test_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    store = Store(tmp_path, "me")
    (tmp_path / "jobs/me/.new-000001/logs").mkdir(parents=True)
    assert store.create(build, at=1.0).directory.name == "000001"
    (tmp_path / "jobs/me/.deleted-000007").mkdir()
    store.purge()
    assert store.ids() == ["000001"]
    assert sorted(path.name for path in (tmp_path / "jobs/me").iterdir()) == ["000001"]


@pytest.mark.parametrize("torn", [b'{"job": "00', b"\0" * 30, b'{"job": "00\n'])
def test_what_is_noted_of_removed_jobs_survives_a_torn_line(tmp_path, torn):
    store = Store(tmp_path)
    store.add_unreleased("000001", "tpu-a may still exist")
    with (store.supervisor / "unreleased.jsonl").open("ab") as file:
        file.write(torn)  # by a loss of power
    store.add_unreleased("000002", "tpu-b may still exist")
    assert [store.unreleased(job) for job in ("000001", "000002", "000003")] == [
        "tpu-a may still exist",
        "tpu-b may still exist",
        "",
    ]
