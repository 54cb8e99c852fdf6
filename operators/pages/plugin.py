"""The plug-in with which Airflow shows the pages: a menu entry, and the application.

Every Airflow process imports this module, but only the API server shows pages, so the application is imported at its
first request.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from elastrec.operators.settings import PREFIX


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """The application of `app`, as ASGI calls it."""
    from elastrec.operators.pages.app import app

    await app(scope, receive, send)


class ElastrecPlugin(AirflowPlugin):
    """Entry point `airflow.plugins`."""

    name = "elastrec"
    fastapi_apps = [{"app": pages, "url_prefix": PREFIX, "name": "elastrec"}]
    external_views = [
        {
            "name": "Training jobs",
            "href": f"{PREFIX}/",
            "url_route": "training-jobs",
            "destination": "nav",
            "category": "browse",
        }
    ]
