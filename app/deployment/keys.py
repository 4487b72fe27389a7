"""Keys and certificates: made once, never overwritten, readable by their owner alone."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as to
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
DAYS = 825
"""How long a server's certificate is valid; the authority's own, ten times as long."""


def write_private(path: Path, content: bytes) -> None:
    """A file that nobody but its owner can ever read; one that is there is an error."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def device_key(path: Path) -> bytes:
    """A device's key (P-384, as SuperNodes want it), made if it is not there; its public line."""
    if not path.exists():
        write_private(path, openssh(ec.generate_private_key(ec.SECP384R1())))
    return public_line(path)


def signer_key(path: Path) -> bytes:
    """The key that signs apps (Ed25519), made if it is not there; its public line."""
    if not path.exists():
        write_private(path, openssh(ed25519.Ed25519PrivateKey.generate()))
    return public_line(path)


def openssh(key: PrivateKey) -> bytes:
    """A private key as `ssh-keygen` writes it."""
    return key.private_bytes(to.Encoding.PEM, to.PrivateFormat.OpenSSH, to.NoEncryption())


def load(path: Path) -> Any:
    """A private key of a file."""
    return to.load_ssh_private_key(path.read_bytes(), None)


def public_line(path: Path) -> bytes:
    """The public half of a private key, as a line of OpenSSH."""
    public = load(path).public_key()
    return bytes(public.public_bytes(to.Encoding.OpenSSH, to.PublicFormat.OpenSSH)) + b"\n"


def authority(folder: Path) -> None:
    """An authority of one's own, `ca.key` and `ca.crt`, if there is none."""
    if (folder / "ca.key").exists():
        return
    key = ec.generate_private_key(ec.SECP384R1())
    name = called("corsage authority")
    use = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    built = (
        draft(name, name, key, DAYS * 10)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(use, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_private(folder / "ca.key", openssh(key))
    (folder / "ca.crt").write_bytes(pem(built))


def server_certificate(folder: Path, authority: Path, names: list[str]) -> None:
    """`server.key` and `server.crt` for a server of these names, made anew each time.

    The key is of P-256: each handshake costs a signature, which takes far longer with P-384.
    """
    own, key = load(authority / "ca.key"), ec.generate_private_key(ec.SECP256R1())
    ca = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
    of_server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(own.public_key())
    built = (
        draft(called(names[0]), ca.subject, key, DAYS)
        .add_extension(x509.SubjectAlternativeName([alternative(n) for n in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(of_server, critical=False)
        .add_extension(issuer, critical=False)
        .sign(own, hashes.SHA384())
    )
    text = key.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption())
    (folder / "server.key").unlink(missing_ok=True)
    write_private(folder / "server.key", text)
    (folder / "server.crt").write_bytes(pem(built))


def names_of(certificate: Path) -> list[str]:
    """The names that a server's certificate is for, and none once it is soon to end."""
    if not certificate.exists():
        return []
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
    if found.not_valid_after_utc < soon:
        return []
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def draft(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    """The beginning of every certificate; valid from an hour ago, since clocks differ."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def called(name: str) -> x509.Name:
    """A common name; at most 64 letters are allowed there."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def alternative(name: str) -> x509.GeneralName:
    """A host's name or its address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def pem(certificate: x509.Certificate) -> bytes:
    """A certificate as text."""
    return certificate.public_bytes(to.Encoding.PEM)


class Shown:
    """The certificate that a server shows, which is read again when its files change.

    Parameters
    ----------
    config : uvicorn's, which names them and has read them once.
    """

    def __init__(self, config: Any) -> None:
        self.context, self.files = config.ssl, (config.ssl_certfile, config.ssl_keyfile)
        self.stamp = moments(self.files)

    def look(self) -> None:
        """Show another from the next connection on; not before both of its files are there."""
        with contextlib.suppress(OSError):  # an SSLError is one
            if (stamp := moments(self.files)) != self.stamp:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self.files)
                self.context.load_cert_chain(*self.files)
                self.stamp = stamp


def moments(files: Iterable[str]) -> list[int]:
    """The moments at which files were last written."""
    return [Path(file).stat().st_mtime_ns for file in files]
