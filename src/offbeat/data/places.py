"""Where the real data sets lie, and whether their bytes are the right ones.

Looked for in this order: the folder given (`--data DIR`), the variable OFFBEAT_DATA, and `shared/data` beside any
folder above the current one or above this source file. A set found is checked against the SHA-256 sums below once
per process, so that a figure always belongs to known bytes.
"""

import hashlib
import os
from functools import cache
from pathlib import Path

from offbeat.errors import BadData

VARIABLE = "OFFBEAT_DATA"

SHA256: dict[str, dict[str, str]] = {
    "cifar10_subset": {
        "test1000_images.npy.xz": "1b3102733a15b03e9b530d28f54c486c0b41c3e356442ba8f1bdcce0da1dfb35",
        "test1000_labels.npy": "6988dd2f6284b6f7aedd9bd0d908439f0a7edff3776195add3af3aa053ea8ed3",
        "train15000_images.npy.xz": "c66c5015cebb9e820b1ee84497adefef57448dc9c9d169e653bed7783f9b3c1d",
        "train15000_labels.npy": "798f62cd3cb8f0aecd35707f8f0a2bfd97ab802fc375ef58bd7584068cd85f77",
    },
    "fashion_mnist": {
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    },
    "give_me_some_credit": {
        "cs-training.csv.xz": "853a25422034ee8242fc698903f977a1cd8de935f19c80352a840674acb78168",
    },
    "mnist": {
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "train-images-idx3-ubyte.gz": "0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    },
    "modelnet10_voxel": {
        "modelnet10_voxel30.npz": "1d2ba2c73db01f67920b3c9f06a429e052cb5e55372a0c7a82984671347c7cbd",
    },
    "news20_ngrams": {
        "news20_counts.npz": "2119f58eabc676b60a92c25daff28eb5d6ff0e07942d15a5f3861fd92f4751a0",
        "news20_labels.npz": "ad25e8344bb3add47da2ad22390eebe2205a2f17306e5c64a8d02ffec3dd071c",
    },
    "parkinsons_telemonitoring": {
        "parkinsons_updrs.csv.xz": "1132f4b5ba22a7304208bfe3e89675cec46f7d8213f1d73bd031b8756bde1dfd",
    },
    "physionet2012_set_a": {
        "Outcomes-a.txt.gz": "842851a8b5bd4979121ea1a4ba8afa6f8a05592b9ee6c550fd0f643bbe49a494",
        "set-a.csv.xz": "3a9960087db46ab6207931e8778a29eb9b1b747639cc22a7a8c0aa06f8539d3d",
    },
    "sgemm_gpu": {
        "sgemm_product.csv.xz": "acb358538dd85b12cb3d8b287b21c9b538e9e6d01addcd4ad96c03524d9e889d",
    },
    "uci_credit_card": {
        "UCI_Credit_Card.csv.xz": "b414b1ea26596b90e3cfa3d67a75b9a4e3e847a889c043372729e7084eac8bd3",
    },
    "usps": {
        "usps.h5": "734f88c541104a956d88be2c95d03b4a463ffd74ccc2ba9c80841fb98e3fcb36",
    },
}

STAND_INS = {
    "uci_credit_card": "credit-like",
    "give_me_some_credit": "credit-like",
    "news20_ngrams": "news20-shaped",
    "mnist": "digits-like",
    "fashion_mnist": "digits-like",
    "usps": "digits-like",
    "modelnet10_voxel": "solids-like",
    "physionet2012_set_a": "icu-like",
    "sgemm_gpu": "known-ridge",
    "parkinsons_telemonitoring": "known-ridge",
}


def places_to_look(data_dir: str | Path | None = None) -> list[Path]:
    """Every folder that may hold the sets, best first. A folder that was given is the only one looked at."""
    if data_dir is not None:
        return [Path(data_dir)]
    named = [Path(os.environ[VARIABLE])] if os.environ.get(VARIABLE) else []
    above = [
        start / "shared" / "data" for root in (Path.cwd(), Path(__file__).resolve()) for start in (root, *root.parents)
    ]
    return list(dict.fromkeys([*named, *above]))


def find_set(name: str, data_dir: str | Path | None = None) -> Path | None:
    """The set's folder, or None when no place has all of its files."""
    for place in places_to_look(data_dir):
        folder = place / name
        if all((folder / file).is_file() for file in SHA256[name]):
            return folder
    return None


def at_hand(name: str, data_dir: str | Path | None = None) -> str:
    """The set itself where it is found, else the generated one that stands in for it."""
    return name if find_set(name, data_dir) is not None else STAND_INS[name]


def file_mark(path: Path) -> tuple[int, int, int] | None:
    """What changes whenever a file does, and None where there is none. Not its time alone: two changes within one tick
    of the clock have the same."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def set_folder(name: str, data_dir: str | Path | None = None) -> Path:
    """The set's folder, its bytes checked; a missing set is refused with where it was sought and what to use."""
    folder = find_set(name, data_dir)
    if folder is None:
        raise BadData(_not_found(name, data_dir))
    for file, expected in SHA256[name].items():
        found = _sha256(folder / file, file_mark(folder / file))
        if found != expected:
            raise BadData(
                f"{folder / file} is not the file that {name!r} names: its SHA-256 is {found}, expected {expected}. "
                "Fetch it anew, or read your own file with read_table."
            )
    return folder


def _not_found(name: str, data_dir: str | Path | None) -> str:
    instead = STAND_INS.get(name)
    advice = f"Or use the generated stand-in {instead!r}." if instead else "There is no generated stand-in."
    return (
        f"The data set {name!r} (files {', '.join(SHA256[name])}) was not found. Searched: {_searched(data_dir)}. "
        f"Point --data or {VARIABLE} to a folder that holds {name}/. {advice}"
    )


def _searched(data_dir: str | Path | None) -> str:
    """The folder given, or the variable's and those that exist; with a word when there were none."""
    places = places_to_look(data_dir)
    if data_dir is not None:
        return str(places[0])
    real = [str(place) for place in places if place.is_dir() or str(place) == os.environ.get(VARIABLE)]
    return (
        ", ".join(real) or f"no folder (--data not given, {VARIABLE} not set, no shared/data above the current folder)"
    )


@cache
def _sha256(file: Path, mark: object) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
