"""Which model a call of Triton's API means."""

from __future__ import annotations

from broker.gateway.gateway import Gateway
from broker.gateway.kserve_api.describe import VERSION
from broker.gateway.problems import Problem
from mesh.report import ModelReport


async def require_model(gateway: Gateway, name: str, version: str) -> ModelReport:
    """An empty version is any. Raises Problem 404, or 503 when nothing is ready."""
    model = gateway.watch.model(name)
    if model is None:
        await gateway.watch.refresh()  # it may have come this moment
        model = gateway.watch.model(name)
    if model is None or version not in ("", VERSION):
        await gateway.watch.require_ready()
        served = ", ".join(repr(model.name) for model in gateway.watch.models)
        raise Problem(404, f"there is no model {name!r} of version {version or VERSION!r}; served: {served}, version 1")
    return model
