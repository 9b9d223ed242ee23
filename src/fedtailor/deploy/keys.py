"""The keys of a federation: its authority, the server's certificate, and two keys for each site.

A site is known to the transport by a pair of elliptic-curve keys, and to the server by a shared secret that seals every
letter. Private things are files that only their owner reads; none is ever written to a log or a command line.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from fedtailor.registry import WrongInput

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
except ImportError:
    raise WrongInput(
        "real federations need more packages; install them with: pip install 'fedtailor[federation]'"
    ) from None

PEM = serialization.Encoding.PEM
AUTHORITY_DAYS = 3650


@dataclass(frozen=True)
class SiteKeys:
    """What tells one site from another; the server needs the public key and the secret."""

    key_id: str
    private: str  # in OpenSSH's format
    public: str  # PEM
    secret: str  # hexadecimal

    @classmethod
    def draw(cls) -> SiteKeys:
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        private = key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
        return cls(secrets.token_hex(8), private.decode(), public.decode(), secrets.token_hex(32))


def make_authority(folder: Path, name: str) -> None:
    """The authority that signs the server's certificate: `ca.key`, `ca.crt`."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _name(f"{name} authority")
    builder = (
        _certificate(subject, subject, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
                key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
            ),
            critical=True,
        )
    )  # fmt: skip
    write_private(folder / "ca.key", _private(key))
    write_public(folder / "ca.crt", builder.sign(key, hashes.SHA384()).public_bytes(PEM))


def make_server_certificate(folder: Path, host: str, days: int) -> None:
    """A new key and certificate of the server for the address that sites use, signed by the authority."""
    try:
        authority_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except FileNotFoundError:
        raise WrongInput(
            f"{folder} has no ca.key, so the certificate is your own authority's to renew; put the new one into "
            "server.crt and its key into server.key"
        ) from None
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    key = ec.generate_private_key(ec.SECP384R1())
    names = [_alternative(host)]
    builder = (
        _certificate(_name(host), authority.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    write_private(folder / "server.key", _private(key))
    write_public(folder / "server.crt", builder.sign(authority_key, hashes.SHA384()).public_bytes(PEM))


def check_own(authority: Path, certificate: Path, key: Path, host: str) -> None:
    """That certificates of one's own belong together and name the host."""
    try:
        signed = x509.load_pem_x509_certificate(certificate.read_bytes())
        x509.load_pem_x509_certificates(authority.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise WrongInput(f"the certificates cannot be read ({error}); give PEM files, the key unlocked") from None
    here = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if signed.public_key().public_bytes(*here) != private.public_key().public_bytes(*here):
        raise WrongInput(f"{key} is not the key of {certificate}; give the two that were made together")
    try:
        names = signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    known = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    if host not in known:
        raise WrongInput(f"{certificate} is for {', '.join(known) or 'no host'}, not for {host}; change --host")


def expiry(certificate: Path) -> dt.datetime:
    end: dt.datetime = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    return end


def write_private(path: Path, data: bytes) -> None:
    """Readable and writable for its owner only, from the first moment on."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f".{path.name}.tmp")
    beside.unlink(missing_ok=True)
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def write_public(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_bytes(data)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))  # clocks differ
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    written: bytes = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return written
