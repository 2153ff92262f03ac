"""The claim of a borrowed TPU: a label that says which store uses it, so that two users do not run on one TPU.

Within a store a lease says which job it is; the label is there for the other stores of the project. The API replaces
the whole map of labels, and a node has no etag: of two claims that are written at once, the later one remains. So a
claim is written only where the labels have none, and is held once it was alone there for `SETTLE` seconds after it
was seen: whoever has read the labels before that has written his own by then, and ours is gone. A store whose own
call took so long that this does not hold (`SLOW`) waits until the holder must have noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tpux_gcp.labels import JOB, USER, label_value

PREFIX = "tpux-claim-"
# Seconds.
SETTLE = 10.0
SLOW = 5.0
"""A claim that took longer, from the reading of the labels until it was seen, may have replaced a held one."""
SETTLE_SLOWLY = 120.0
"""Four polls of a holder, who looks after its claim."""
VALID_FOR = 6 * 3600
RENEW_BEFORE = 5 * 3600
"""Claims are renewed when they are valid for less than this, so once an hour: also a clock that is wrong by hours does
no harm."""
LOST_AFTER = 60.0
"""A claim that was written and is not to be seen this long is written anew."""

Owner = Literal["free", "ours", "another"]
Step = Literal[
    "held",
    "wait",
    "another",  # another store's claim is there: ours, if there is one, is to be removed
    "intend",  # save the note, then look again
    "write",  # write the note's claim now
]


@dataclass(frozen=True)
class Claim:
    """A claim as a label has it.

    Attributes:
        store: the id of the store.
        until: when it is valid no more, in seconds since the epoch.
        since: when it was made.
        job: the id of the job.
        user: the job's owner.
    """

    store: str
    until: int
    since: int
    job: str = ""
    user: str = ""

    @property
    def key(self) -> str:
        """The label's key."""
        return claim_key(self.store)

    @property
    def value(self) -> str:
        """The label's value."""
        return label_value(f"{self.until}-{self.since}-{self.job}-{self.user}")


@dataclass(frozen=True)
class Note:
    """What a job has noted of its claim. Times are those of the steps.

    Attributes:
        value: of the label that is about to be written, or was; empty if there is none.
        begun_at: before the labels were read to which it was added.
        sent: it may have been written.
        late: another claim of this store was there, perhaps by a late call that has replaced another store's.
        seen_at: when it was first seen, alone; 0 before.
        held: it was seen alone for long enough.
        retry_at: not to be tried before this, after a collision.
    """

    value: str = ""
    begun_at: float = 0.0
    sent: bool = False
    late: bool = False
    seen_at: float = 0.0
    held: bool = False
    retry_at: float = 0.0


def claim_key(store: str) -> str:
    """Return the key of the label with which a store claims a TPU."""
    return f"{PREFIX}{label_value(store)}"[:63]


def claims_in(labels: Mapping[str, str]) -> dict[str, Claim]:
    """Return the claims in labels, by store. One that cannot be read has no times, and counts as well."""
    return {
        key.removeprefix(PREFIX): _parse(key.removeprefix(PREFIX), value)
        for key, value in labels.items()
        if key.startswith(PREFIX)
    }


def _parse(store: str, value: str) -> Claim:
    until, since, job, user = [*value.split("-", 3), "", "", ""][:4]
    if not (until.isdecimal() and since.isdecimal()):
        return Claim(store, 0, 0)
    return Claim(store, int(until), int(since), job, user)


def claim_of_another(labels: Mapping[str, str], store: str) -> Claim | None:
    """Return the claim of another store, the earliest one; None if there is none.

    A claim of ours that is earlier counts more: the other store will see it, and yield.
    """
    claims = claims_in(labels)
    ours = claims.pop(label_value(store), None)
    first = min(claims.values(), key=lambda claim: (claim.since, claim.store), default=None)
    if first is None or (ours is not None and (ours.since, ours.store) < (first.since, first.store)):
        return None
    return first


def whose(labels: Mapping[str, str], store: str) -> Owner:
    """Return whose claim stands, seen from a store that holds the TPU."""
    if claim_of_another(labels, store) is not None:
        return "another"
    return "ours" if claim_key(store) in labels else "free"


def next_step(labels: Mapping[str, str], fresh: Claim, note: Note, now: float) -> tuple[Step, Note]:
    """Return what a job does next to hold the claim of a TPU, and what it notes before.

    Args:
        labels: the TPU's, read in this step.
        fresh: the claim that it would write now.
        note: what it has noted.
        now: the time at which this step began, before the labels were read.
    """
    ours = labels.get(fresh.key)
    others = [store for store in claims_in(labels) if claim_key(store) != fresh.key]
    if note.held and ours is not None and whose(labels, fresh.store) == "ours":
        return "held", note
    if others:
        return "another", Note(retry_at=note.retry_at)
    if now < note.retry_at:
        return "wait", note
    return _claim(ours, fresh, Note() if note.held else note, now)  # a held one was removed


def _claim(ours: str | None, fresh: Claim, note: Note, now: float) -> tuple[Step, Note]:
    """Return the same where no other store claims the TPU; `ours` is the value that the label has."""
    late = ours is not None and ours != note.value
    intended: tuple[Step, Note] = "intend", Note(value=fresh.value, begun_at=now, late=late)
    if not note.value or note.begun_at > now or note.seen_at > now:  # the clock was set back
        return intended
    if ours != note.value:
        if not note.sent:
            sending = replace(note, begun_at=now, sent=True, seen_at=0.0, late=note.late or late)
            if now - note.begun_at <= SLOW:
                return "write", sending
            return intended
        if now - note.begun_at < LOST_AFTER:
            return "wait", replace(note, seen_at=0.0)
        return intended
    note = replace(note, sent=True, seen_at=note.seen_at or now)
    if settled_in(note, now) > 0:
        return "wait", note
    return "held", replace(note, held=True)


def settled_in(note: Note, now: float) -> float:
    """Return the seconds after which a claim that was seen is held, if it is still alone then."""
    slow = note.late or note.seen_at - note.begun_at > SLOW
    return note.seen_at + (SETTLE_SLOWLY if slow else SETTLE) - now


def user_of(labels: Mapping[str, str]) -> tuple[str, str]:
    """Return the id and the owner of the job that uses a TPU: by a claim, else the job that created it; "" if none."""
    claims = claims_in(labels).values()
    if first := min(claims, key=lambda claim: claim.since, default=None):
        return first.job, first.user
    return labels.get(JOB, ""), labels.get(USER, "")


def without(labels: Mapping[str, str], store: str) -> dict[str, str]:
    """Return labels without a store's claim."""
    return {key: value for key, value in labels.items() if key != claim_key(store)}


def renewed(labels: Mapping[str, str], fresh: Claim) -> Claim | None:
    """Return the claim that a holder writes now, as it expires soon or was removed; None if nothing is to be written.

    Args:
        labels: the TPU's, without a claim of another store.
        fresh: the claim that it would make now.
    """
    ours = claims_in(labels).get(label_value(fresh.store))
    if ours is None or not ours.since:
        return fresh
    if ours.until - (fresh.until - VALID_FOR) >= RENEW_BEFORE:
        return None
    return replace(fresh, since=ours.since)
