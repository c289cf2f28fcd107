"""A broker of one's own: certificates, access rules and configuration for Mosquitto, written by one call.

    folder/
      authority.crt, authority.key    signs everybody's certificate; the key stays with whoever runs the broker
      broker/                         mosquitto.conf, access.rules, server.crt, server.key, data/
      parties/<name>/                 <name>.crt, authority.crt: what that party is handed; and <name>.key, unless the
                                      party made its own and asked for a certificate (`sign_request`)

The broker asks every client for its certificate and takes the name in it as the user. By the access rules a party
reads only what is addressed to it and writes only under its own name, so the last word of a topic is a proven sender.

    offbeat/<run>/to/<receiver>/<sender>     messages
    offbeat/<run>/status/<party>             "here", or the last will "lost"; kept for late comers
"""

import getpass
import ipaddress
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from offbeat.errors import BadInput
from offbeat.party.contract import PartyName
from offbeat.runtime.certificates import key_mark, named, new_key, private_pem, public_pem, unsigned
from offbeat.runtime.processes import free_ports

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
FRAME_BYTES = 16 * 1024 * 1024
QUEUED_MESSAGES = 1000
INFLIGHT_MESSAGES = 20

ACCESS_RULES = """\
# The user is the name in the client's certificate (%u).
user {cloud}
topic write offbeat/+/to/+/{cloud}

pattern write offbeat/+/to/{cloud}/%u
pattern read offbeat/+/to/%u/+
pattern write offbeat/+/status/%u
pattern read offbeat/+/status/+
"""

CONFIGURATION = """\
# Written by `offbeat mqtt init`. Start with: mosquitto -c {folder}/mosquitto.conf
per_listener_settings false
{run_as}allow_anonymous false
acl_file {folder}/access.rules

listener {port} {bind}
cafile {folder}/authority.crt
certfile {folder}/server.crt
keyfile {folder}/server.key
require_certificate true
use_identity_as_username true
tls_version tlsv1.2

# Small acknowledged messages stall for 40 ms and more unless both ends send at once.
set_tcp_nodelay true

# Every queue has a bound.
message_size_limit {frame_bytes}
max_queued_messages {queued}
max_inflight_messages {inflight}
max_keepalive 300

# Subscriptions and undelivered messages survive a restart.
persistence true
persistence_location {folder}/data/
autosave_interval 30

log_dest stderr
log_type error
log_type warning
log_type notice
connection_messages true
"""


@dataclass(frozen=True)
class BrokerPlan:
    """What to generate. `host` is the name or address by which clients reach the broker."""

    parties: Sequence[PartyName]
    cloud: PartyName = "cloud"
    host: str = "127.0.0.1"
    bind: str = "0.0.0.0"
    port: int = 8883
    frame_bytes: int = FRAME_BYTES
    run_as: str = ""
    """The system user the broker runs as when it is started by root; empty for Mosquitto's own default."""
    own_keys: bool = False
    """Every party makes its own private key, and asks for a certificate."""


def write_broker(folder: Path, plan: BrokerPlan) -> Path:
    """Generate everything; the path of the configuration is returned. An existing authority is kept and used again,
    so that parties can be added later."""
    _check(plan)
    folder = folder.resolve()
    authority = _authority(folder)
    server = folder / "broker"
    (server / "data").mkdir(parents=True, exist_ok=True)
    _write_pair(server, "server", authority, plan.host, plan.host)
    _write(server / "authority.crt", public_pem(authority.certificate))
    _write(server / "access.rules", ACCESS_RULES.format(cloud=plan.cloud).encode())
    _write(server / "mosquitto.conf", _configuration(server, plan).encode())
    for name in () if plan.own_keys else (plan.cloud, *plan.parties):
        mine = folder / "parties" / name
        mine.mkdir(parents=True, exist_ok=True)
        if not (mine / f"{name}.crt").exists():
            _write_pair(mine, name, authority, name)
        _write(mine / "authority.crt", public_pem(authority.certificate))
    return server / "mosquitto.conf"


def sign_request(folder: Path, request_pem: bytes) -> tuple[Path, str]:
    """(folder with the certificate for whoever asked, mark of its key to compare with it). A name has one: whoever asks
    for one that is taken could be anybody."""
    try:
        request = x509.load_pem_x509_csr(request_pem)
        name = str(request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    except (ValueError, IndexError) as problem:
        raise BadInput("expected a certificate request in PEM, as `offbeat mqtt request NAME` makes one.") from problem
    key = request.public_key()
    if not request.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey) or not NAME.fullmatch(name):
        raise BadInput(f"the request of {name!r} is not one that `offbeat mqtt request NAME` makes.")
    if not (folder / "authority.key").is_file():
        raise BadInput(f"expected an authority in {folder}, found none; `offbeat mqtt init {folder}` makes one.")
    mine = folder / "parties" / name
    if (mine / f"{name}.crt").exists():
        raise BadInput(f"{mine} has a certificate of '{name}' already; move it away if '{name}' is to have another.")
    mine.mkdir(parents=True, exist_ok=True)
    authority = _authority(folder)
    _write(mine / f"{name}.crt", _certificate(name, key, authority))
    _write(mine / "authority.crt", public_pem(authority.certificate))
    return mine, key_mark(key)


def _certificate(name: str, key: ec.EllipticCurvePublicKey, authority: "_Signer", host: str = "") -> bytes:
    """For a client; with a host, for the broker that listens there."""
    usage = ExtendedKeyUsageOID.SERVER_AUTH if host else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = unsigned(named(name), authority.certificate.subject, key)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if host:
        builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=False)
    return public_pem(builder.sign(authority.key, hashes.SHA256()))


def _check(plan: BrokerPlan) -> None:
    for name in (plan.cloud, *plan.parties):
        if NAME.fullmatch(name) is None:
            raise BadInput(f"A party's name on the broker is lower-case letters, digits, - and _; {name!r} is not.")
    if len({plan.cloud, *plan.parties}) != 1 + len(plan.parties):
        raise BadInput(f"Every party needs a name of its own; came {[plan.cloud, *plan.parties]}.")
    if not 0 < plan.port < 65536:
        raise BadInput(f"A port lies between 1 and 65535; {plan.port} does not.")


def _configuration(server: Path, plan: BrokerPlan) -> str:
    return CONFIGURATION.format(
        folder=server,
        port=plan.port,
        bind=plan.bind,
        frame_bytes=plan.frame_bytes + 1024,
        queued=QUEUED_MESSAGES,
        inflight=INFLIGHT_MESSAGES,
        run_as=f"user {plan.run_as}\n" if plan.run_as else "",
    )


@dataclass(frozen=True)
class _Signer:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def _authority(folder: Path) -> _Signer:
    folder.mkdir(parents=True, exist_ok=True)
    certificate_path, key_path = folder / "authority.crt", folder / "authority.key"
    if key_path.exists():
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return _Signer(x509.load_pem_x509_certificate(certificate_path.read_bytes()), key)
    key, name = new_key(), named("offbeat broker authority")
    signed = unsigned(name, name, key.public_key(), authority=True).sign(key, hashes.SHA256())
    _write(certificate_path, public_pem(signed))
    _write(key_path, private_pem(key))
    return _Signer(signed, key)


def _write_pair(folder: Path, stem: str, authority: _Signer, name: str, host: str = "") -> None:
    key = new_key()
    _write(folder / f"{stem}.crt", _certificate(name, key.public_key(), authority, host))
    _write(folder / f"{stem}.key", private_pem(key))


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, content: bytes) -> None:
    """Keys are for their owner's eyes alone from the first byte on."""
    mode = 0o600 if path.suffix == ".key" else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


# -- a broker for a while -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunningBroker:
    """Where a broker on this machine listens, and one folder with everybody's certificates."""

    port: int
    identity: Path


def find_mosquitto() -> str | None:
    """The program, also where an ordinary user's path does not lead."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def running_broker(names: Sequence[PartyName]) -> Iterator[RunningBroker | None]:
    """Mosquitto on loopback, for the cloud and these edges, until the block ends; None where it is not installed."""
    program = find_mosquitto()
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        (port,) = free_ports(1)
        plan = BrokerPlan(names, bind="127.0.0.1", port=port, run_as=getpass.getuser())
        configuration = write_broker(Path(folder), plan)
        process = subprocess.Popen([program, "-c", str(configuration)], stderr=subprocess.DEVNULL)
        try:
            _wait_until_open(port, process)
            yield RunningBroker(port, _one_folder(Path(folder), [plan.cloud, *names]))
        finally:
            process.terminate()
            process.wait(10)


def _one_folder(folder: Path, names: Sequence[PartyName]) -> Path:
    together = folder / "together"
    together.mkdir()
    for name in names:
        for path in (folder / "parties" / name).iterdir():
            shutil.copy(path, together / path.name)
    return together


def _wait_until_open(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("mosquitto did not open its port")
