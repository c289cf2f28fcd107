"""The three calls of openmined.psi, as pure jobs over bytes: blind, answer, intersect."""

from collections.abc import Sequence
from typing import Any

from offbeat.errors import NotInstalled

FALSE_POSITIVE_RATE = 1e-9  # asked for by the library, and not used: its raw sets have no false positives


def _library() -> Any:
    try:
        import private_set_intersection.python as psi
    except ImportError as problem:
        raise NotInstalled(
            "private set intersection needs the extra 'psi': pip install 'offbeat[psi]'; or import an alignment."
        ) from problem
    return psi


def _texts(tokens: Sequence[bytes]) -> list[str]:
    return [token.hex() for token in tokens]


def blind(key: bytes, tokens: Sequence[bytes]) -> bytes:
    if not tokens:
        return b""
    request: bytes = _library().client.CreateFromKey(key, True).CreateRequest(_texts(tokens)).SerializeToString()
    return request


def answer(key: bytes, own: Sequence[bytes], request: bytes) -> tuple[bytes, bytes]:
    """(own tokens blinded, the request's tokens blinded again). An empty side has an empty intersection."""
    psi = _library()
    if not own or not request:
        return b"", b""
    server = psi.server.CreateFromKey(key, True)
    asked = psi.Request()
    asked.ParseFromString(request)
    count = len(asked.encrypted_elements)
    setup = server.CreateSetupMessage(FALSE_POSITIVE_RATE, count, _texts(own), psi.DataStructure.RAW)
    return setup.SerializeToString(), server.ProcessRequest(asked).SerializeToString()


def intersect(key: bytes, tokens: Sequence[bytes], own: bytes, response: bytes) -> list[bytes]:
    if not own or not response:
        return []
    psi = _library()
    setup, answer = psi.ServerSetup(), psi.Response()
    setup.ParseFromString(own)
    answer.ParseFromString(response)
    common = psi.client.CreateFromKey(key, True).GetIntersection(setup, answer)
    return [tokens[i] for i in sorted(common)]
