"""Who is who: a party's key and certificate, and the roster that all parties agree on.

A party proves its name by a private key that never leaves its key folder. The roster lists every party with the
certificate it must show; all sides compare the roster's hash (by telephone, say) before they trust it, and every
connection begins by comparing it again. A certificate signed by an authority is accepted only if it is also pinned.
"""

import hashlib
import json
import math
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from offbeat.errors import BadInput
from offbeat.runtime.certificates import DAYS, key_mark, named, new_key, private_pem, public_pem, unsigned

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
AUTHORITY = "authority"
CERTIFICATES_MOST = 2
"""Of one member: the new one, and that of before."""


@dataclass(frozen=True, slots=True)
class Identity:
    """This party's own name, certificate and private key (the key stays in memory only)."""

    name: str
    certificate_pem: bytes
    key_pem: bytes

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.certificate_pem)

    @property
    def mark(self) -> str:
        """Tells keys apart; it is of the public half."""
        return key_mark(_private_key(self.key_pem).public_key())

    def sign(self, content: bytes) -> bytes:
        return _private_key(self.key_pem).sign(content, ec.ECDSA(hashes.SHA256()))

    def derive(self, purpose: str) -> bytes:
        """Thirty-two secret bytes for one purpose, the same after a restart, useless for finding the key."""
        scalar = _private_key(self.key_pem).private_numbers().private_value.to_bytes(32, "big")
        return hashlib.blake2b(purpose.encode(), key=scalar, digest_size=32, person=b"offbeat-derive").digest()


@dataclass(frozen=True, slots=True)
class Member:
    """One party of the roster. `address` is empty for a party that only calls out. `older_pem`: certificates of before,
    which it may show as well while it changes its key."""

    name: str
    certificate_pem: bytes
    address: str = ""
    older_pem: tuple[bytes, ...] = ()

    @property
    def certificates(self) -> tuple[bytes, ...]:
        return (self.certificate_pem, *self.older_pem)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(map(fingerprint, self.certificates))

    def signed(self, content: bytes, signature: bytes) -> bool:
        return any(_signed(pem, content, signature) for pem in self.certificates)

    def also(self, other: "Member") -> "Member":
        """This member with the certificates of another entry of it, too."""
        new = [pem for pem in other.certificates if fingerprint(pem) not in self.fingerprints]
        return replace(self, older_pem=(*self.older_pem, *new))


@dataclass(frozen=True, slots=True)
class PinnedRoster:
    """The parties that may talk to each other, and the authorities (if any) that signed their certificates."""

    members: tuple[Member, ...]
    authorities_pem: tuple[bytes, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @property
    def hash(self) -> str:
        """What all sides sign off: names and certificates. Addresses may differ from network to network."""
        return _hash_of(self.pins)

    @property
    def pins(self) -> list[str]:
        """A line for each certificate: whose it is, and its fingerprint."""
        lines = sorted(f"{member.name} {mark}" for member in self.members for mark in member.fingerprints)
        return lines + sorted(f"{AUTHORITY} {fingerprint(pem)}" for pem in self.authorities_pem)

    def agrees(self, pins: Sequence[str], hashed: str) -> bool:
        """Whether somebody with these pins, of which this is the hash, knows the same parties: each by at least one
        certificate of ours. While a key is changed, one side may have both certificates and the other one of them."""
        if hashed == self.hash:
            return True
        ours, theirs = _by_name(self.pins), _by_name(pins)
        same = ours.keys() == theirs.keys() and all(ours[name] & theirs[name] for name in ours)
        return same and _hash_of(pins) == hashed and ours.get(AUTHORITY) == theirs.get(AUTHORITY)

    @property
    def roots_pem(self) -> bytes:
        """Trust anchors for a handshake: the authorities and every pinned self-signed certificate."""
        own = (pem for member in self.members for pem in member.certificates if self_signed(pem))
        return b"".join(self.authorities_pem) + b"".join(own)

    def member(self, name: str) -> Member:
        for member in self.members:
            if member.name == name:
                return member
        raise BadInput(f"the roster has no party '{name}'; it lists {', '.join(self.names) or 'nobody'}.")

    def who(self, certificate_pem: bytes) -> Member | None:
        """The member this very certificate belongs to; a certificate that is not pinned belongs to nobody."""
        shown = fingerprint(certificate_pem)
        return next((member for member in self.members if shown in member.fingerprints), None)

    def among(self, names: Iterable[str]) -> "PinnedRoster":
        """What concerns these parties: two rosters that pin them alike are one to a run between them."""
        kept = set(names)
        return PinnedRoster(tuple(member for member in self.members if member.name in kept), self.authorities_pem)

    def also(self, new: "PinnedRoster") -> "PinnedRoster":
        """This roster, with the certificates that its members have in a newer one beside those of before."""
        known = {member.name: member for member in new.members}
        return replace(self, members=tuple(one.also(known.get(one.name, one)) for one in self.members))

    def with_member(self, member: Member) -> "PinnedRoster":
        """This roster with one party added, or with its certificate or address replaced."""
        others = tuple(m for m in self.members if m.name != member.name)
        return PinnedRoster(tuple(sorted((*others, member), key=lambda m: m.name)), self.authorities_pem)


def _by_name(pins: Sequence[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in pins:
        name, _, mark = line.partition(" ")
        found.setdefault(name, set()).add(mark)
    return found


def _hash_of(pins: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(pins).encode()).hexdigest()


def _signed(certificate_pem: bytes, content: bytes, signature: bytes) -> bool:
    try:
        _public_key(certificate_pem).verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


@lru_cache(64)
def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


@lru_cache(1024)
def _public_key(certificate_pem: bytes) -> ec.EllipticCurvePublicKey:
    key = x509.load_pem_x509_certificate(certificate_pem).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key


@lru_cache(1024)
def fingerprint(certificate_pem: bytes) -> str:
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return certificate.fingerprint(hashes.SHA256()).hex()


def short(hexadecimal: str) -> str:
    """A hash as people read it to each other: eight groups of four digits."""
    return " ".join(hexadecimal[i : i + 4] for i in range(0, 32, 4))


def self_signed(certificate_pem: bytes) -> bool:
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return certificate.issuer == certificate.subject


def common_name(certificate_pem: bytes, where: Path) -> str:
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        return check_name(str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value))
    except (ValueError, IndexError) as problem:
        raise BadInput(f"{where} is not a certificate in PEM, as `offbeat keys new` makes one (NAME.crt).") from problem


def validity(certificate_pem: bytes) -> tuple[datetime, datetime]:
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def out_of_time(certificate_pem: bytes) -> str:
    """What is wrong with a certificate by this machine's clock; nothing, if it is valid now."""
    (begin, end), now = validity(certificate_pem), datetime.now(UTC)
    clock = f"{now:%Y-%m-%d %H:%M} UTC by the clock of this machine"
    if now < begin:
        wait = begin - now
        early = f"{wait.days} days" if wait.days > 1 else f"{math.ceil(wait.total_seconds() / 60)} minutes"
        return f"is not valid before {begin:%Y-%m-%d %H:%M} UTC; it is {clock}, {early} too early. Is that clock right?"
    return f"ended on {end:%Y-%m-%d %H:%M} UTC; it is {clock}" if now > end else ""


def blocks(pem: bytes) -> tuple[bytes, ...]:
    """The certificates of a text with several."""
    end = b"-----END CERTIFICATE-----"
    return tuple(part.lstrip() + end + b"\n" for part in pem.split(end)[:-1]) or (pem,)


def tls_name(name: str) -> str:
    """The host name in a party's certificate; connections ask for it whatever address they dial."""
    return f"{name.replace('_', '-')}.party.offbeat"


# -- making keys ------------------------------------------------------------------------------------------------------


def new_identity(name: str, *, days: int = DAYS, now: datetime | None = None) -> Identity:
    """A fresh key with a self-signed certificate, for a roster that pins it."""
    key, mark = new_key(), x509.NameAttribute(NameOID.SERIAL_NUMBER, secrets.token_hex(8))
    # A subject of its own: of two anchors with one subject, a handshake looks at one only.
    subject = x509.Name([*named(name), mark])
    certificate = _certificate(name, subject, key.public_key(), subject, now, days).sign(key, hashes.SHA256())
    return Identity(check_name(name), public_pem(certificate), private_pem(key))


def new_request(name: str) -> tuple[bytes, bytes]:
    """(private key, certificate request) in PEM, for an organisation with its own authority."""
    key = new_key()
    builder = x509.CertificateSigningRequestBuilder().subject_name(named(check_name(name)))
    request = builder.add_extension(_alternative_names(name), critical=False).sign(key, hashes.SHA256())
    return private_pem(key), request.public_bytes(serialization.Encoding.PEM)


def sign_request(request_pem: bytes, authority: Identity, *, days: int = DAYS) -> bytes:
    """What an authority answers to a request: for tests and for trying things out, not a certificate authority."""
    request = x509.load_pem_x509_csr(request_pem)
    name = str(request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    key = serialization.load_pem_private_key(authority.key_pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority.certificate_pem).subject
    public = request.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    return public_pem(_certificate(name, named(name), public, issuer, None, days).sign(key, hashes.SHA256()))


def new_authority(name: str = "authority", *, days: int = DAYS) -> Identity:
    key = new_key()
    builder = unsigned(named(name), named(name), key.public_key(), authority=True, days=days)
    return Identity(name, public_pem(builder.sign(key, hashes.SHA256())), private_pem(key))


def check_name(name: str) -> str:
    if not NAME_PATTERN.fullmatch(name):
        raise BadInput(
            f"'{name}' cannot be a party's name: expected lower-case letters, digits, '-' or '_', beginning with a "
            "letter or digit, at most 63 of them (it becomes part of a certificate and of file names)."
        )
    return name


def _alternative_names(name: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.DNSName(tls_name(name))])


def _certificate(
    name: str, subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name, start: datetime | None, days: int
) -> x509.CertificateBuilder:
    builder = unsigned(subject, issuer, key, start=start, days=days)
    both_ways = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return builder.add_extension(x509.ExtendedKeyUsage(both_ways), critical=False).add_extension(
        _alternative_names(name), critical=False
    )


# -- files ------------------------------------------------------------------------------------------------------------


def write_private(path: Path, content: bytes) -> None:
    """A file that only its owner can read, made so before the content goes in; never over an existing one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise BadInput(f"{path} exists already; a private key is never overwritten. Move it away first.") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def load_identity(name: str, key_path: Path, certificate_path: Path) -> Identity:
    """Read a key pair and check that the halves belong together and that nobody else can read the key."""
    for path, what in ((key_path, "private key"), (certificate_path, "certificate")):
        if not path.is_file():
            raise BadInput(
                f"expected the {what} of '{name}' at {path}, found nothing; `offbeat keys new {name}` makes one."
            )
    if key_path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadInput(f"{key_path} can be read by others; run `chmod 600 {key_path}`.")
    identity = Identity(check_name(name), certificate_path.read_bytes(), key_path.read_bytes())
    _check_pair(identity, key_path, certificate_path)
    return identity


def _check_pair(identity: Identity, key_path: Path, certificate_path: Path) -> None:
    try:
        certificate = x509.load_pem_x509_certificate(identity.certificate_pem)
        probe = identity.sign(b"probe")
    except (ValueError, TypeError, AssertionError) as problem:
        raise BadInput(
            f"{key_path} and {certificate_path} should be an elliptic-curve (P-256) key and certificate in PEM, as "
            "`offbeat keys new` makes them; one of them is not."
        ) from problem
    if not Member(identity.name, identity.certificate_pem).signed(b"probe", probe):
        raise BadInput(
            f"{certificate_path} was made for another key than {key_path}; take the pair from one `keys new`."
        )
    common = str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    if common != identity.name:
        raise BadInput(f"{certificate_path} belongs to '{common}', expected '{identity.name}'.")


def read_roster(path: Path) -> PinnedRoster:
    if not path.is_file():
        raise BadInput(f"expected a roster at {path}, found nothing; `offbeat keys trust` writes one.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if foreign := sorted(content.keys() - {"party", "authorities"}):
            raise ValueError(f"it has {', '.join(map(repr, foreign))}")
        members = tuple(_member(name, entry) for name, entry in sorted(content.get("party", {}).items()))
        authorities = tuple(pem.encode() for pem in content.get("authorities", []))
        roster = PinnedRoster(members, authorities)
        _ = roster.hash
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise BadInput(f"{path} is not a roster as `offbeat keys trust` writes it: {problem}.") from problem
    return roster


def _member(name: str, entry: dict[str, Any]) -> Member:
    older = tuple(pem.encode() for pem in entry.get("older", []))
    if len(older) >= CERTIFICATES_MOST:
        raise BadInput(f"the roster has {len(older)} older certificates of '{name}'; expected one at most.")
    member = Member(check_name(name), entry["certificate"].encode(), entry.get("address", ""), older)
    if "fingerprint" in entry and entry["fingerprint"] != member.fingerprints[0]:
        raise BadInput(f"the roster's fingerprint of '{name}' does not belong to the certificate written beside it.")
    return member


def write_roster(path: Path, roster: PinnedRoster) -> None:
    lines = [
        "# Parties that may talk to each other, with the certificate each must show. Nothing here is secret.",
        f"# Hash to compare with the other parties: {short(roster.hash)}",
        "",
    ]
    if roster.authorities_pem:
        quoted = ",\n".join(f"'''\n{pem.decode()}'''" for pem in roster.authorities_pem)
        lines += [f"authorities = [\n{quoted}\n]", ""]
    for member in roster.members:
        lines += [
            f"[party.{member.name}]",
            f"address = {json.dumps(member.address)}",
            f'fingerprint = "{member.fingerprints[0]}"',
        ]
        lines += [f"certificate = '''\n{member.certificate_pem.decode().strip()}\n'''", ""]
        if member.older_pem:
            older = ",\n".join(f"'''\n{pem.decode().strip()}\n'''" for pem in member.older_pem)
            lines[-1:] = [
                "# Of before; taken as well until `offbeat keys trust` names the new one alone.",
                f"older = [\n{older}\n]",
                "",
            ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")
