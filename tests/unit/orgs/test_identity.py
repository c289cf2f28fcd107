"""Keys, certificates and the roster that all sides agree on."""

import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from offbeat.errors import BadInput
from offbeat.runtime.grpc.identity import (
    Identity,
    Member,
    PinnedRoster,
    blocks,
    check_name,
    load_identity,
    new_authority,
    new_identity,
    new_request,
    out_of_time,
    read_roster,
    short,
    sign_request,
    validity,
    write_private,
    write_roster,
)


def test_a_roster_comes_back_from_its_file_with_the_same_hash(tmp_path: Path) -> None:
    authority = new_authority()
    members = tuple(Member(name, new_identity(name).certificate_pem, f"{name}.example:7443") for name in ("ana", "bo"))
    roster = PinnedRoster(members, (authority.certificate_pem,))
    write_roster(tmp_path / "roster.toml", roster)
    again = read_roster(tmp_path / "roster.toml")
    assert again.hash == roster.hash and again.names == ("ana", "bo")
    assert again.member("bo").address == "bo.example:7443"
    assert "PRIVATE" not in (tmp_path / "roster.toml").read_text()


def test_the_hash_covers_names_and_certificates_and_not_addresses() -> None:
    ana, bo = new_identity("ana"), new_identity("bo")
    roster = PinnedRoster((Member("ana", ana.certificate_pem, "a:1"), Member("bo", bo.certificate_pem)))
    moved = roster.with_member(Member("ana", ana.certificate_pem, "b:2"))
    assert moved.hash == roster.hash
    rekeyed = roster.with_member(Member("ana", new_identity("ana").certificate_pem, "a:1"))
    assert rekeyed.hash != roster.hash and rekeyed.names == roster.names
    assert short(roster.hash).count(" ") == 7


def test_only_the_pinned_certificate_is_somebody() -> None:
    ana = new_identity("ana")
    roster = PinnedRoster((Member("ana", ana.certificate_pem),))
    assert roster.who(ana.certificate_pem) == roster.members[0]
    assert roster.who(new_identity("ana").certificate_pem) is None
    with pytest.raises(BadInput, match="no party 'bo'"):
        roster.member("bo")


def test_a_key_is_readable_by_its_owner_alone_and_never_overwritten(tmp_path: Path) -> None:
    identity = new_identity("ana")
    key, certificate = tmp_path / "keys" / "ana.key", tmp_path / "ana.crt"
    write_private(key, identity.key_pem)
    certificate.write_bytes(identity.certificate_pem)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(BadInput, match="never overwritten"):
        write_private(key, b"other")
    assert load_identity("ana", key, certificate) == identity
    key.chmod(0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        load_identity("ana", key, certificate)


def test_pairs_that_do_not_belong_together_are_named(tmp_path: Path) -> None:
    write_private(tmp_path / "ana.key", new_identity("ana").key_pem)
    (tmp_path / "ana.crt").write_bytes(new_identity("ana").certificate_pem)
    with pytest.raises(BadInput, match="made for another key"):
        load_identity("ana", tmp_path / "ana.key", tmp_path / "ana.crt")
    bo = new_identity("bo")
    write_private(tmp_path / "bo.key", bo.key_pem)
    (tmp_path / "bo.crt").write_bytes(bo.certificate_pem)
    with pytest.raises(BadInput, match="belongs to 'bo', expected 'ana'"):
        load_identity("ana", tmp_path / "bo.key", tmp_path / "bo.crt")
    with pytest.raises(BadInput, match="found nothing"):
        load_identity("ana", tmp_path / "no.key", tmp_path / "no.crt")
    (tmp_path / "bad.crt").write_text("not a certificate")
    with pytest.raises(BadInput, match="elliptic-curve"):
        load_identity("bo", tmp_path / "bo.key", tmp_path / "bad.crt")


def test_signatures_prove_the_key_of_a_certificate() -> None:
    ana, bo = new_identity("ana"), new_identity("bo")
    member = Member("ana", ana.certificate_pem)
    assert member.signed(b"content", ana.sign(b"content"))
    assert not member.signed(b"another", ana.sign(b"content"))
    assert not member.signed(b"content", bo.sign(b"content"))
    assert not member.signed(b"content", b"")


def test_derived_secrets_are_stable_and_differ_by_purpose_and_key() -> None:
    ana = new_identity("ana")
    again = Identity("ana", ana.certificate_pem, ana.key_pem)
    assert ana.derive("masks run-1") == again.derive("masks run-1")
    assert ana.derive("masks run-1") != ana.derive("masks run-2")
    assert ana.derive("masks run-1") != new_identity("ana").derive("masks run-1")


def test_an_authority_signs_requests() -> None:
    authority = new_authority("house")
    key, request = new_request("dan")
    dan = Identity("dan", sign_request(request, authority, days=10), key)
    assert Member("dan", dan.certificate_pem).signed(b"x", dan.sign(b"x"))
    assert validity(dan.certificate_pem)[1] - datetime.now(UTC) < timedelta(days=11)


@pytest.mark.parametrize("name", ["", "Ana", "a b", "-a", "a" * 64, "../x", "ä"])
def test_names_that_cannot_be_file_names_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="cannot be a party's name"):
        check_name(name)


@pytest.mark.parametrize(
    "text",
    ["name = 'job'", "party = 3", "[party.ana]\naddress = 'x'", "[party.ana]\ncertificate = 'nonsense'", "not toml ="],
)
def test_a_damaged_roster_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "roster.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"roster\.toml"):
        read_roster(path)


def test_a_fingerprint_that_does_not_match_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "roster.toml"
    write_roster(path, PinnedRoster((Member("ana", new_identity("ana").certificate_pem),)))
    text = path.read_text()
    mark = PinnedRoster((Member("ana", new_identity("ana").certificate_pem),)).members[0].fingerprints[0]
    start = text.index('fingerprint = "') + 15
    path.write_text(text[:start] + mark + text[start + 64 :])
    with pytest.raises(BadInput, match="does not belong to the certificate"):
        read_roster(path)


def test_two_certificates_of_one_member_overlap(tmp_path: Path) -> None:
    """One side has heard of the new one, the other has dropped the old one: both know who it is, whichever it shows."""
    old, new, bo = new_identity("ana"), new_identity("ana"), new_identity("bo")
    friend = Member("bo", bo.certificate_pem, "b:2")
    before = PinnedRoster((Member("ana", old.certificate_pem, "a:1"), friend))
    both = before.with_member(Member("ana", new.certificate_pem, "a:1").also(before.member("ana")))
    after = before.with_member(Member("ana", new.certificate_pem, "a:1"))
    write_roster(tmp_path / "roster.toml", both)
    assert read_roster(tmp_path / "roster.toml") == both
    assert both.member("ana").signed(b"x", old.sign(b"x")) and both.member("ana").signed(b"x", new.sign(b"x"))
    assert not after.member("ana").signed(b"x", old.sign(b"x"))
    assert all(both.who(pem) == both.member("ana") for pem in (old.certificate_pem, new.certificate_pem))
    assert old.certificate_pem in both.roots_pem and new.certificate_pem in both.roots_pem

    def agree(one: PinnedRoster, other: PinnedRoster) -> bool:
        return one.agrees(other.pins, other.hash)

    assert agree(before, both) and agree(both, before) and agree(both, after) and agree(after, both)
    assert not agree(before, after), "neither certificate is known to both"
    assert not agree(both, PinnedRoster(both.members[:1])), "another party is missing"
    assert not agree(both, PinnedRoster(both.members, (new_authority().certificate_pem,)))
    assert not both.agrees(after.pins, before.hash), "the lines are not what the hash is of"
    assert before.also(after).member("ana").certificates == (old.certificate_pem, new.certificate_pem)
    assert blocks(old.certificate_pem + new.certificate_pem) == (old.certificate_pem, new.certificate_pem)


def test_a_clock_that_is_wrong_is_named() -> None:
    now = datetime.now(UTC)
    fresh = new_identity("ana")
    assert out_of_time(fresh.certificate_pem) == ""
    early = out_of_time(new_identity("ana", now=now + timedelta(hours=1, minutes=20)).certificate_pem)
    assert re.search(r"is not valid before .* UTC by the clock of this machine, 20 minutes too early\. Is that", early)
    days = out_of_time(new_identity("ana", now=now + timedelta(days=2, hours=3)).certificate_pem)
    assert "2 days too early" in days
    assert out_of_time(new_identity("ana", days=1, now=now - timedelta(days=9)).certificate_pem).startswith("ended on")
