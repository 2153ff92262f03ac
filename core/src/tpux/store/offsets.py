"""How far each listener has received a job's events: `listeners/<plugin>.json` in the job's directory."""

from __future__ import annotations

from dataclasses import dataclass

from tpux.model.events import Created
from tpux.store.files import JsonFile
from tpux.store.record import Record

DIRECTORY = "listeners"


@dataclass(frozen=True)
class _Stored:
    offset: int | None  # None: at the end that the events have when the listener continues
    failures: int = 0


@dataclass(frozen=True)
class Offset:
    """The place in a job's events at which a listener continues.

    Attributes:
        offset: the end of the last event that it has received.
        failures: how often the call for the next event has failed.
    """

    offset: int
    failures: int = 0


def read(record: Record, listener: str, *, begin: bool = False) -> Offset:
    """Return where a listener continues in a job's events.

    One that was installed when the job was created begins with the first event, any other one at the present end.

    Args:
        record: the job, just read.
        listener: the plugin.
        begin: store the present end for a listener that begins there; needed before the job's next event is written.

    Raises:
        TpuxError, OSError: the events cannot be read, or the offset cannot be written.
    """
    file = _file(record, listener)
    stored = file.load()
    if stored is None and file.path.exists():
        return Offset(0)  # torn by a crash of the machine: rather twice than never
    if stored is None:
        first = next(record.events(), None)
        if first is not None and isinstance(first[0], Created) and listener in first[0].plugins:
            return Offset(0)
    if stored is None or stored.offset is None:
        here = Offset(record.offset)
        if begin:  # durable: after a crash of the machine it would begin later, and events would be lost
            write(record, listener, here, durable=True)
        return here
    return Offset(min(stored.offset, record.offset), stored.failures)


def write(record: Record, listener: str, place: Offset, *, durable: bool = False) -> None:
    """Store where a listener continues.

    Without `durable` a crash of the machine may bring an older offset back; then the listener receives events twice.

    Raises:
        FileNotFoundError: the job has been removed.
        OSError: it cannot be written.
    """
    _save(record, listener, _Stored(place.offset, place.failures), durable=durable)


def reset_uninstalled(record: Record, installed: set[str]) -> None:
    """Make every other listener begin at the end that the job's events have when it is installed again.

    Raises:
        OSError: an offset cannot be written.
    """
    for path in (record.directory / DIRECTORY).glob("[!.]*.json"):
        if path.stem not in installed:
            _save(record, path.stem, _Stored(None))


def _save(record: Record, listener: str, stored: _Stored, *, durable: bool = False) -> None:
    (record.directory / DIRECTORY).mkdir(exist_ok=True, mode=0o700)
    _file(record, listener, durable=durable).save(stored)


def _file(record: Record, listener: str, *, durable: bool = False) -> JsonFile[_Stored]:
    return JsonFile(record.directory / DIRECTORY / f"{listener}.json", _Stored, durable=durable)
