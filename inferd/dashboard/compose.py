"""Puts the dashboard together from a node's owners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferd.api.audit import Audit
from inferd.api.inference_endpoint import InferenceEndpoint
from inferd.api.key_admin import KeyAdmin
from inferd.api.node_admin import NodeAdmin
from inferd.api.operations import OPERATIONS
from inferd.dashboard.actions import Actions, Deed
from inferd.dashboard.batches import Batches
from inferd.dashboard.pages import Pages
from inferd.dashboard.playground import Playground
from inferd.dashboard.site import Site
from inferd.inference import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Scope

    from inferd.inference import Caller
    from inferd.storage.audit import Action


def dashboard(
    node: Any,  # noqa: ANN401 - each part asks for what it needs of it by a protocol of its own
    admin_key: str,
    note: Callable[[Action], object],
) -> ASGIApp:
    """The site of a node; `note` takes what was done there, as at the admin API."""
    site = Site(admin_key)
    batches = Batches(site, node)
    keys = KeyAdmin(node.keys, lambda: node.config)

    async def restart(worker_id: str) -> None:
        node.supervisor.restart(worker_id)

    async def drain(worker_id: str) -> None:
        node.supervisor.drain(worker_id)

    deeds = [
        Deed(
            "/workers/{id}/restart",
            "Restart",
            "Worker {id} takes no new requests, finishes its streams until workers.drain_s, and is"
            " started again.",
            "",
            restart,
        ),
        Deed(
            "/workers/{id}/drain",
            "Drain",
            "Worker {id} takes no new requests, finishes its streams until workers.drain_s, and"
            " stays stopped until it is restarted.",
            "",
            drain,
        ),
        Deed(
            "/keys/{id}/revoke",
            "Revoke",
            "Key {id} is refused from its next request on. This cannot be undone.",
            "/keys",
            keys.revoke,
        ),
        Deed(
            "/batches/{id}/cancel",
            "Cancel",
            "Batch {id} ends: what is finished stays, and is billed; the rest is not begun.",
            "/batches",
            batches.cancel,
        ),
    ]

    def chat_endpoint(caller_of: Callable[[Scope], Caller]) -> InferenceEndpoint:
        (operation,) = (one for one in OPERATIONS if one.endpoint is Endpoint.CHAT)
        endpoint: InferenceEndpoint = node.endpoint(operation, caller_of)
        return endpoint

    pages = Pages(site, node, NodeAdmin(node), keys, node.history)
    playground = Playground(site, lambda: node.config, chat_endpoint)
    parts = (pages, batches, playground, Actions(site, deeds))
    return Audit(site.app([route for part in parts for route in part.routes()]), note)
