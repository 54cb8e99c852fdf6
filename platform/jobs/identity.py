"""The secret of a job: created at its launch, stored as files of its master's pod, and read from there by clients.

The cluster gives it to authorised callers, so it does not depend on tokens of the cluster, which may differ between
callers and change while the job runs.
"""

from __future__ import annotations

import datetime

from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.specs.environment import CA_FILE, TOKEN_FILE
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.transport.security import JobSecret, TlsConfig, job_server_name, new_token

_VALID_DAYS = 3650
_CLOCK_DAYS = 1  # how far a node's clock may be behind ours
_MAXIMUM_KNOWN = 64


def new_job_secret(platform: Platform, job_id: str) -> JobSecret:
    """A random secret for a job; with TLS for its pods if the cluster's own API uses TLS."""
    return JobSecret(new_token(), new_job_tls(job_id) if platform.cluster_config.job_tls else None)


def new_job_tls(job_id: str) -> TlsConfig:
    """A new root certificate, and a certificate signed by it for the job's servers, which does not contain addresses.

    The root's key is not stored, so no other certificates that the job trusts can be created.
    """
    # Imported here, because it takes a tenth of a second, which jobs without TLS do not need.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = job_server_name(job_id)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])

    def signed(public_key: ec.EllipticCurvePublicKey, subject: str, extensions: list[x509.ExtensionType]) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("elastrec job"))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=_CLOCK_DAYS))
            .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(root_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    return TlsConfig(
        signed(root_key.public_key(), "elastrec job", [x509.BasicConstraints(ca=True, path_length=0)]),
        signed(
            key.public_key(),
            name,
            [
                x509.BasicConstraints(ca=False, path_length=None),
                x509.SubjectAlternativeName([x509.DNSName(name)]),
                x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]),
            ],
        ),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        name,
    )


def secret_of(platform: Platform, master: PodStatus) -> JobSecret | None:
    """The client's secret (token and root certificate) for the job of a master's pod; None if the pod has been deleted.

    It is requested once per pod and platform.

    Raises:
        ClusterError: the cluster does not answer, or the pod is not a master.
    """
    secrets = platform.known_secrets
    if (secret := secrets.get(master.uid)) is not None:
        return secret
    files = platform.launcher.secrets(master.name, master.uid)
    if files is None:
        return None
    if TOKEN_FILE not in files:
        raise ClusterError(f"pod {master.name} has no secret {TOKEN_FILE!r}: it is no master of a job")
    root = files.get(CA_FILE, "").encode()
    tls = TlsConfig(root, server_name=job_server_name(master.job)) if root else None
    # Many masters are asked concurrently, so the dictionary is replaced as a whole.
    for oldest in list(secrets)[: max(0, len(secrets) + 1 - _MAXIMUM_KNOWN)]:
        secrets.pop(oldest, None)
    return secrets.setdefault(master.uid, JobSecret(files[TOKEN_FILE], tls))
