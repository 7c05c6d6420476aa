"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.library.local import FoundModel
from hearth.app.server.services import services_of


async def list_models(http: Request) -> Response:
    """Every model that requests may name."""
    found = services_of(http).catalog.found()
    return JSONResponse({"object": "list", "data": [_model(model) for model in found]})


async def retrieve_model(http: Request) -> Response:
    """One model. Raises `ModelNotFound`."""
    return JSONResponse(_model(services_of(http).catalog.find(http.path_params["name"]).found))


def _model(model: FoundModel) -> dict[str, Any]:
    try:
        created = int(model.path.stat().st_mtime)
    except OSError:  # Removed since it was listed; asking for it will say so.
        created = 0
    return {"id": model.name, "object": "model", "created": created, "owned_by": model.origin}
