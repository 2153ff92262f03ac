"""A Kubernetes API on a fake connection, without a cluster, for the allocator's hooks."""

from __future__ import annotations

import json
from collections.abc import Sequence

import httpx

from tpux import JsonValue
from tpux_gke.section import GkeTpuSection

OWNER = {"tpux-store": "s1", "tpux-user": "me", "tpux-job": "000007", "tpux-token": "abcd"}
TPU = GkeTpuSection.model_validate({"accelerator": "v6e-16", "image": "python"})


class Api:
    """A fake API: `jobset`, `pods`, `events` are what it has; `fails` is what creations answer, `gateway` all.

    `gateway_page` is a status and a text that all requests are answered with. `serves` are the versions of JobSet that
    it serves, `left` the pods without a JobSet.
    """

    def __init__(self) -> None:
        self.jobset: dict[str, JsonValue] | None = None
        self.pods: Sequence[JsonValue] = ()
        self.events: Sequence[JsonValue] | None = ()
        self.creations = 0
        self.throttled: str | None = None
        self.fails: list[int] = []
        self.gateway: JsonValue = None
        self.gateway_page: tuple[int, str] | None = None
        self.answers_creation: JsonValue = None
        self.left: Sequence[JsonValue] = ()
        self.serves: Sequence[str] = ("v1alpha2",)

    def has_jobset(self) -> bool:
        """Return whether it has one."""
        return self.jobset is not None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer a request."""
        if self.throttled is not None:
            headers = [(b"Retry-After", self.throttled.encode("latin-1"))]
            return httpx.Response(429, json={"kind": "Status", "message": "too many requests"}, headers=headers)
        if (answer := self._of_gateway()) is not None:
            return answer
        return self._of_groups(request.url.path) or self._answer(request)

    def _of_groups(self, path: str) -> httpx.Response | None:
        """Return the answer about its groups, or to a path of one that it does not serve: a line of text."""
        if path == "/apis":
            versions: list[JsonValue] = [{"version": version} for version in self.serves]
            groups: list[JsonValue] = [{"name": "jobset.x-k8s.io", "versions": versions}] if versions else []
            return httpx.Response(200, json={"kind": "APIGroupList", "groups": groups})
        is_served = not path.startswith("/apis/") or f"{path}/".split("/")[3] in self.serves
        return None if is_served else httpx.Response(404, text="404 page not found\n")

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if request.method == "POST" and self.answers_creation is not None:
            return httpx.Response(200, json=self.answers_creation)
        if request.method == "POST" and self.fails:
            if not (status := self.fails.pop()):
                raise httpx.ReadTimeout("timed out")
            return httpx.Response(status, json={"kind": "Status", "message": "no"})
        if request.method == "POST":
            made: dict[str, JsonValue] = json.loads(request.content)
            self.jobset = made
            self.creations += 1
            return httpx.Response(201, json=made)
        if path.endswith("/jobsets/train"):
            if self.jobset is None:
                return httpx.Response(404, json={"kind": "Status", "reason": "NotFound", "message": "not found"})
            found = self.jobset
            self.jobset = None if request.method == "DELETE" else found
            return httpx.Response(200, json=found)
        items = self.events if path.endswith("/events") else self.pods if self.has_jobset() else self.left
        if items is None:
            return httpx.Response(403, json={"kind": "Status", "message": "events is forbidden"})
        return httpx.Response(200, json={"kind": "List", "apiVersion": "v1", "metadata": {}, "items": [*items]})

    def _of_gateway(self) -> httpx.Response | None:
        if self.gateway_page is not None:
            return httpx.Response(self.gateway_page[0], text=self.gateway_page[1])
        return None if self.gateway is None else httpx.Response(200, json=self.gateway)
