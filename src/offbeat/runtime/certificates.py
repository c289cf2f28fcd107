"""Keys and certificates as both networks make them, gRPC's parties and the broker's: P-256, named by a common name."""

import hashlib
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 825


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def unsigned(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    *,
    authority: bool = False,
    start: datetime | None = None,
    days: int = DAYS,
) -> x509.CertificateBuilder:
    """A certificate to be extended and signed; an authority signs others, but no further authority."""
    start = start or datetime.now(UTC)
    # An hour back, so that a peer whose clock is a little slow accepts a certificate made just now.
    builder = x509.CertificateBuilder().not_valid_before(start - timedelta(hours=1))
    builder = builder.not_valid_after(start + timedelta(days=days))
    builder = builder.subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    constraints = x509.BasicConstraints(ca=authority, path_length=0 if authority else None)
    return builder.add_extension(constraints, critical=True)


def public_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_mark(key: ec.EllipticCurvePublicKey) -> str:
    """Tells keys apart."""
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key.public_bytes(*form)).hexdigest()
