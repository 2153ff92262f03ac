"""Judge an attempt by its logs and exit codes: whether the program had finished, or which failure is the root cause.

What the allocator says about the machines outranks all of these, so `failure.classify` asks it first; a line in a log
does not, whatever its kind. The choice does not depend on the order in which the ends of the workers were observed:
each has its own time, by the worker's clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tpux.model.failures import Failure, FailureKind, Finished

LESS_LIKELY: frozenset[FailureKind] = frozenset({"infra", "program", "unknown", "incomplete"})
"""Kinds that often follow from another worker's failure: any other kind is the likelier root cause."""
NO_REASON = Failure("unknown", evidence="the attempt ended without a reason")


def root_cause(findings: Iterable[Failure], exits: Iterable[Failure]) -> Failure:
    """Return the root cause: the earliest of the likelier kinds that is no symptom.

    Args:
        findings: what the detectors report. On their workers the exit code alone counts no more.
        exits: what each worker's exit code alone stands for; none of a worker that tpux ended.

    Returns:
        The cause, with the exit code of its worker, and how many other workers failed.
    """
    of_worker = {exit_.worker: exit_ for exit_ in exits}
    causes = [_complete(finding, of_worker.get(finding.worker)) for finding in findings]
    explained = {cause.worker for cause in causes}
    causes += [exit_ for worker, exit_ in of_worker.items() if worker not in explained]
    cause = min(causes, key=_rank, default=NO_REASON)
    return replace(cause, others=len(of_worker.keys() - {cause.worker}))


def finished_before(claims: Iterable[Finished], exits: Iterable[Failure]) -> Finished | None:
    """Return what shows that the program had finished: the first claim before which no other worker had failed.

    Args:
        claims: what the detectors that the job trusts report.
        exits: what each worker's exit code alone stands for; none of a worker that tpux ended.
    """
    failed = {exit_.worker: exit_.at or 0.0 for exit_ in exits}
    for claim in sorted(claims, key=lambda one: (one.at or float("inf"), one.worker or 0, one.evidence)):
        at = failed.get(claim.worker) if claim.at is None and claim.worker is not None else claim.at
        if at is None or all(end >= at for worker, end in failed.items() if worker != claim.worker):
            return claim
    return None


def _complete(finding: Failure, exit_: Failure | None) -> Failure:
    """Return a detector's finding with what is known of the worker's end."""
    if exit_ is None:
        return finding
    at = exit_.at if finding.at is None else finding.at
    return replace(finding, at=at, code=exit_.code, hint=finding.hint or exit_.hint)


def _rank(failure: Failure) -> tuple[bool, bool, float, int, str, str]:
    """Rank causes before symptoms, then the likelier kinds, then the earliest."""
    return (
        failure.symptom,
        failure.kind in LESS_LIKELY,
        float("inf") if failure.at is None else failure.at,
        -1 if failure.worker is None else failure.worker,
        failure.kind,  # the rest only makes the choice the same each time
        failure.evidence,
    )
