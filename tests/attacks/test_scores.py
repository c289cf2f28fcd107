"""Attacks of those who may ask for joint scores: on masks of standing sessions, on caps, and on the room for others."""

import os

import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from offbeat.orgs.standing import Lane, Terms
from offbeat.party.masked_sum import SumOptions
from offbeat.privacy.masks import FRACTION_BITS, scale_of
from offbeat.runtime.grpc.identity import Member, new_identity

PARTIES = ("ana", "bo", "cy", "eve")
SCALE = scale_of(FRACTION_BITS)
TOKEN = b"t" * 16


def test_a_friend_of_the_asker_that_offers_anothers_key_as_its_own_unmasks_nobody() -> None:
    """Before: Ana, who sorts before Bo, signed Cy's key as hers. Bo subtracted for Ana what he added for Cy: his words
    went to Eve unmasked, in a session of four with two honest parties."""
    identities = {name: new_identity(name) for name in ("ana", "bo", "cy")}
    members = {name: Member(name, identity.certificate_pem) for name, identity in identities.items()}
    terms = Terms("credit-1", "score-1", "eve", PARTIES, SumOptions())
    bo, cy = (Lane(terms, name, os.urandom(32)) for name in ("bo", "cy"))
    public, signature = cy.offer(identities["cy"])
    stolen = (public, identities["ana"].sign(terms.signed_by("ana", public)))
    bo.take({"ana": stolen, "cy": (public, signature)}, members)
    bo.claim(0)
    words = bo.words(0, TOKEN, np.array([1.25]), np.array([True]))
    assert words[0] != 0 and abs(words.view(np.int64)[1] / SCALE - 1.25) > 1e-3
