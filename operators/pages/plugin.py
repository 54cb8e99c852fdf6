"""What Airflow reads to show the pages: an entry in its menu, and the application behind it.

Every process of Airflow reads this, and only the API server shows pages: the application is imported with its first
request.
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
