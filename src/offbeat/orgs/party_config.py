"""party.toml: what one party brings, where its keys are, and what its owner allows.

Paths are relative to the file. The example that `offbeat party init` writes explains every key.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cryptography import x509

from offbeat.data.preparation import Prepare
from offbeat.data.sql import beside, check_source
from offbeat.errors import BadInput, PeerFailed
from offbeat.jobs.vertical import instead_of_old_keys
from offbeat.orgs.policy import Names, Policy, meanings
from offbeat.runtime.grpc.identity import Identity, PinnedRoster, check_name, load_identity, read_roster, tls_name
from offbeat.settings import Settings, quoted, read_toml, settings_from, toml_value

CONTROL_FILE = "control"
"""In the private folder: where the daemon that was started last listens."""


class OwnData(Settings, frozen=True, kw_only=True):
    """This party's file, or its table in a database. No columns listed: all but id and label."""

    file: str | None = None
    id: str
    table: str | None = None
    label: str | None = None
    weight: str | None = None  # the column that says how much a row counts, at the party with the labels
    exposure: str | None = None  # and what a count or an amount is of
    columns: tuple[str, ...] = ()
    prepare: Prepare = "auto"
    shape: tuple[int, ...] = ()  # how the columns are laid out for a convolutional or recurrent embedding


class Keys(Settings, frozen=True):
    key: str
    certificate: str
    roster: str = "roster.toml"
    older: tuple[str, ...] = ()  # private keys of before: runs that began with one go on with it


class Store(Settings, frozen=True):
    """Keys, salts, aligned rows and finished models lie under `private`. Run folders hold what passed between the
    parties, and checkpoints with this party's weights: they are its own too, readable by the owner alone."""

    runs: str = "runs"
    private: str = "private"
    keep_days: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # how long logs of ended runs are kept; 0: for ever
    keep_mb: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # and how much room they may take; 0: any


class PartyConfig(Settings, frozen=True):
    name: str
    data: OwnData
    keys: Keys
    listen: str = ""  # host:port; empty: this party only calls others
    metrics: str = ""  # host:port for /healthz, /readyz and /metrics; empty: none
    store: Store = Store()
    policy: Policy = Policy()


class Home:
    """A party's settings with the folder they are relative to."""

    def __init__(self, config: PartyConfig, folder: Path, file: Path | None = None) -> None:
        self.config = config
        self.folder = folder
        self.file = file or folder / "party.toml"

    def read_again(self) -> None:
        """Take up the data and policy sections as they stand in the file now; the rest needs a new start."""
        new = read_home(self.file).config
        self.config = msgspec.structs.replace(self.config, data=new.data, policy=new.policy)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def source(self) -> str:
        """The path of this party's file, or the address of its table."""
        data = self.config.data
        return beside(data.file, data.table, self.folder)

    @property
    def runs(self) -> Path:
        return self.folder / self.config.store.runs

    @property
    def private(self) -> Path:
        return self.folder / self.config.store.private

    @property
    def ledger(self) -> Path:
        return self.private / "ledger"

    @property
    def roster_file(self) -> Path:
        return self.folder / self.config.keys.roster

    def daemon_address(self) -> str:
        """Where this party's own daemon listens."""
        control = self.private / CONTROL_FILE
        if not control.is_file():
            raise PeerFailed(
                f"the daemon of '{self.name}' has not been started; run `offbeat party serve --home {self.folder}`."
            )
        return control.read_text(encoding="utf-8").strip()

    def identity(self) -> Identity:
        keys = self.config.keys
        return load_identity(self.name, self.folder / keys.key, self.folder / keys.certificate)

    def key_of(self, mark: str) -> Identity:
        """The identity under the key with this mark, for the secrets of a run that began with it."""
        identity, older = self.identity(), [self.folder / path for path in self.config.keys.older]
        for key in (identity, *(Identity(self.name, b"", path.read_bytes()) for path in older if path.is_file())):
            if key.mark == mark:
                return key
        raise BadInput(
            f"this run of '{self.name}' began with another private key than {self.config.keys.key}, and its masks come "
            'from that key. Name it in party.toml: older = ["OLD.key"] under [keys].'
        )

    def roster(self) -> PinnedRoster:
        """The roster, in which this party must be, under the certificate it has."""
        roster = check_members(read_roster(self.roster_file), self.roster_file)
        if self.identity().fingerprint not in roster.member(self.name).fingerprints:
            raise BadInput(
                f"{self.roster_file} pins another certificate for '{self.name}' than {self.config.keys.certificate}; "
                f"`offbeat keys trust {self.config.keys.certificate}` renews it (and the roster's hash)."
            )
        return roster


def read_home(path: Path) -> Home:
    """Read a party.toml, or the one in a folder."""
    file = path / "party.toml" if path.is_dir() else path
    tree = read_toml(file, "file with a party's settings", "`offbeat party init NAME` writes one.")
    return Home(config_from(tree, file), file.resolve().parent, file.resolve())


def config_from(tree: Mapping[str, Any], file: Path) -> PartyConfig:
    """The settings that a file's plain values stand for; what is wrong with them is named with its key."""
    _refuse_old_keys(tree, file)
    config = settings_from(tree, PartyConfig, file)
    check_name(config.name)
    check_source(config.data.file, config.data.table, f"{file}, data")
    check_address(config.listen, f"{file}: listen")
    check_address(config.metrics, f"{file}: metrics")
    return config


def home_of(run: Path) -> Home:
    """The party whose run folder this is: the nearest party.toml above it."""
    for place in run.resolve().parents:
        if (place / "party.toml").is_file():
            return read_home(place)
    raise BadInput(
        f"{run} is a run of an organisation; expected its party.toml above it: only its owner has what is needed here. "
        "Give HOME/runs/RUN."
    )


def check_members(roster: PinnedRoster, where: Path) -> PinnedRoster:
    """Refuse a roster in which one party could speak in another's name."""
    names: dict[str, str] = {}
    shown: dict[str, str] = {}
    for member in roster.members:
        same = names.setdefault(tls_name(member.name), member.name)
        if same != member.name:
            raise BadInput(
                f"{where}: '{same}' and '{member.name}' are the same name in certificates; rename one of them."
            )
        owners = {shown.setdefault(mark, member.name) for mark in member.fingerprints} - {member.name}
        if owners:
            raise BadInput(
                f"{where}: '{owners.pop()}' and '{member.name}' have the same certificate; each needs its own."
            )
        if any(is_authority(pem, where) for pem in member.certificates):
            raise BadInput(
                f"{where}: the certificate of '{member.name}' may sign others (CA:TRUE), so '{member.name}' could make "
                "certificates for any name. Ask it for one that `offbeat keys new` makes."
            )
    return roster


def is_authority(certificate_pem: bytes, where: Path) -> bool:
    """Whether this certificate may sign others."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as problem:
        raise BadInput(f"{where} is not a certificate in PEM, as `offbeat keys new` makes one (NAME.crt).") from problem
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return False


def _refuse_old_keys(tree: Mapping[str, Any], file: Path) -> None:
    data = tree.get("data", {})
    if isinstance(data, Mapping) and data.keys() & {"standardise", "missing", "one_hot"}:
        one_hot = {"this party": data["one_hot"]} if data.get("one_hot") else {}
        raise BadInput(f"{file}: {instead_of_old_keys(data.get('standardise'), data.get('missing'), one_hot)}")


def check_address(address: str, where: str) -> str:
    """host:port, or nothing for a party that only calls out."""
    host, _, port = address.rpartition(":")
    if address and not (host and port.isdigit() and int(port) < 65536):
        raise BadInput(f"{where} = '{address}': expected host:port, such as 0.0.0.0:7443 or bank.example:7443.")
    return address


EXAMPLE = """\
# One party of a federation. Paths are relative to this file. `offbeat party check` says what is wrong.

name = {quoted_name}
listen = {listen}   # where others reach this party; "" if it only calls out
# metrics = "127.0.0.1:9464"   # /healthz, /readyz and /metrics (Prometheus), for this machine

[data]
file = {file}   # .csv, .tsv, .parquet, .npz or LIBSVM; or a table of a database:
# table = "postgresql+psycopg://reader:${{DB_PASSWORD}}@db.example/bank?table=customers"   # no password
id = {id_column}                 # the column by which rows are matched with the others'
{label_line}
# weight = "weight"         # with the labels: how much each row counts; all parties learn it
# exposure = "years"        # with the labels, for losses poisson and gamma: what a count or an amount is of
columns = []                # feature columns; none listed: all but id and label
prepare = "auto"            # "bins", "scaled", "none"; learned from this party's own training rows, nothing is shared
# prepare = {{ how = "auto", columns = {{ town = "category", note = "leave-out" }} }}   # with columns treated otherwise
# shape = [1, 28, 28]       # only where a job's embedding is "cnn" ([channels, side, side]) or "lstm" ([times, values])

[keys]
key = "keys/{name}.key"           # never leaves this machine
certificate = "keys/{name}.crt"   # give this to the other parties
roster = "roster.toml"            # everybody's certificates; compare its hash with the others
# older = ["keys-before/{name}.key"]   # while a key is changed: runs that began with the one of before go on with it

[store]
runs = "runs"         # records, reports, logs of messages, checkpoints with this party's weights
private = "private"   # salts, aligned rows, finished models, ledgers
keep_days = 0         # how long the logs of ended runs are kept, for replays; 0: for ever
keep_mb = 0           # and how much room they may take; the oldest go first; 0: as much as there is

# What the owner allows. A job outside it is refused with the reason, before any data is read.
# An empty list means nobody, "any" means everyone on the roster.
[policy]
"""


def example(
    name: str,
    *,
    data: str = "",
    id_column: str = "id",
    label: str = "",
    listen: str = "127.0.0.1:7443",
    **allowed: Names,
) -> str:
    """A commented party.toml. `allowed`: keys of its policy that name somebody."""
    label_line = (
        f"label = {quoted(label)}" if label else '# label = "default"   # only where this party holds the labels'
    )
    told = EXAMPLE.format(
        name=name,
        quoted_name=quoted(name),
        listen=quoted(listen),
        file=quoted(data or f"{name}.csv"),
        id_column=quoted(id_column),
        label_line=label_line,
    )
    policy = Policy(**allowed)  # type: ignore[arg-type]
    return told + "".join(_line(key, getattr(policy, key), means) for key, (_, means) in meanings().items())


def _line(key: str, value: Any, means: str) -> str:
    """A key with what it means; one that has no value is shown with one, as a comment."""
    setting = f"# {key} = 4.0" if value is None else f"{key} = {toml_value(value)}"
    return f"{setting:33} # {means}\n"
