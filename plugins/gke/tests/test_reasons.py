"""What Kubernetes says of pods, and whose fault it is."""

from __future__ import annotations

import pytest

from tpux_gke.reasons import own_fault

_LOW = "The node was low on resource: "


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (f"{_LOW}memory. Threshold quantity: 100Mi, available: 80Mi. Container main was using 90Gi", "out-of-memory"),
        (f"{_LOW}ephemeral-storage. Threshold quantity: 10Gi", "program"),
        ('Usage of EmptyDir volume "memory" exceeds the limit "1Gi". ', "program"),
        ("The node had condition: [PIDPressure]. ", ""),
        ("The node had condition: [MemoryPressure]. ", "out-of-memory"),
    ],
)
def test_eviction(said: str, kind: str) -> None:
    """A node that evicts the pod for what the program uses would do so again."""
    pod = {"metadata": {"name": "pod"}, "status": {"phase": "Failed", "reason": "Evicted", "message": said}}
    assert own_fault(pod)[0] == kind
