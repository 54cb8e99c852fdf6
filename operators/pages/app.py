"""The application of the pages: access rights, routes and updates.

A page is complete HTML; its script requests the main part again every few seconds. Only users who may read DAG runs in
Airflow get an answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Query, status
from fastapi import Path as PathParameter
from fastapi.responses import HTMLResponse

from elastrec.operators import settings
from elastrec.operators.pages import looks
from elastrec.platform.history.words import templates_in

_CONNECTION = Query(description="An Airflow connection of the type elastrec; empty: the first that is shown")
_templates = templates_in(Path(__file__).parent / "templates")

app = FastAPI(
    title="elastrec",
    dependencies=[Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.RUN))],
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
)


def _page(name: str, only_main: bool, **values: object) -> HTMLResponse:
    template = _templates.get_template(f"{name}_main.html" if only_main else f"{name}.html")
    return HTMLResponse(template.render(prefix=settings.PREFIX, **values), headers={"Cache-Control": "no-store"})


def _known(connection: str) -> str:
    """The connection, if pages may show it; the first of them if none is named.

    Raises:
        HTTPException: the option `[elastrec] page_connections` does not contain it.
    """
    allowed = looks.connections()
    if not connection:
        return allowed[0]
    if connection not in allowed:
        words = (
            f"connection: {connection!r} is not shown here; allowed: {', '.join(allowed)} ([elastrec] page_connections)"
        )
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"{words}; add it to the option [elastrec] page_connections")
    return connection


@app.get("/")
def all_jobs(connection: Annotated[str, _CONNECTION] = "", part: str = "") -> HTMLResponse:
    """All jobs of a connection's cluster, and the most recent jobs of the past."""
    connection = _known(connection)
    seen = looks.all_jobs(connection)
    return _page("jobs", part == "main", seen=seen, connection=connection, connections=looks.connections())


@app.get("/jobs/{job_id}")
def one_job(
    job_id: Annotated[str, PathParameter(pattern=r"^[a-z0-9][a-z0-9-]*$")],
    connection: Annotated[str, _CONNECTION] = "",
    part: str = "",
) -> HTMLResponse:
    """One job: its progress, its pods, where its time went, and all of its events."""
    connection = _known(connection)
    seen = looks.one_job(connection, job_id)
    return _page("job", part == "main", seen=seen, connection=connection)
