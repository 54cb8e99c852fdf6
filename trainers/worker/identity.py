"""Who this worker is: read once from the environment and the files that the cluster gave the pod."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elastrec.platform.specs import environment
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.transport import TlsConfig
from elastrec.platform.transport.security import job_server_name
from elastrec.trainers.master_client import TermPlace


@dataclass(frozen=True)
class Identity:
    """A pod's name, its job, and how it reaches the master.

    Attributes:
        incarnation: random per process, so that a restarted process is not mistaken for the old one.
    """

    job_id: str
    pod: str
    node: str
    master_address: str
    token: str = field(repr=False)
    tls: TlsConfig | None
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    terms: TermPlace = field(default_factory=TermPlace)

    @staticmethod
    def read(variables: Mapping[str, str] = os.environ) -> Identity:
        """The identity of this process.

        Raises:
            ClusterError: a variable or the token's file is missing; names it.
        """
        needed = (environment.JOB, environment.POD, environment.MASTER_ADDRESS, environment.FILES)
        missing = [name for name in needed if not variables.get(name)]
        if missing:
            raise ClusterError(f"the environment variables {missing} are missing; a cluster backend sets them for pods")
        files = Path(variables[environment.FILES])
        try:
            token = (files / environment.TOKEN_FILE).read_text().strip()
        except OSError as error:
            raise ClusterError(f"the job's token cannot be read: {error}") from error
        return Identity(
            job_id=variables[environment.JOB],
            pod=variables[environment.POD],
            node=variables.get(environment.NODE, ""),
            master_address=variables[environment.MASTER_ADDRESS],
            token=token,
            tls=TlsConfig.from_folder(files, job_server_name(variables[environment.JOB])),
            terms=TermPlace.read(variables),
        )
