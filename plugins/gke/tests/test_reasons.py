"""What Kubernetes says of pods, and whose fault it is."""

from __future__ import annotations

import pytest

from tpux import JsonValue
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
    status: JsonValue = {"phase": "Failed", "reason": "Evicted", "message": said}
    pod: dict[str, JsonValue] = {"metadata": {"name": "pod"}, "status": status}
    assert own_fault(pod)[0] == kind
