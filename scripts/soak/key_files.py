"""Plant files of data keys by chance, rotate the key, and read everything: `python -m scripts.soak.key_files`."""

from __future__ import annotations

import argparse
import base64
import json
import random
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from kbackup.errors import KbackupError
from kbackup.jobs.keys import rotate_keys
from kbackup.store.crypt.kek import load_kek
from kbackup.store.crypt.keyring import KEYS, decode_file, new_file
from kbackup.store.file import FileStore
from tests.support.key_files import filled, key_file, opened

_WAYS = (
    "junk",
    "junk under the new key",
    "other keys",
    "other keys under the new key",
    "overwritten by junk",
)


def plant(inner: FileStore, rng: random.Random, way: str, keys: tuple[str, str]) -> None:
    """Add a file, or overwrite one, as whoever may write and has both keys can."""
    path = rng.choice([info.key for info in inner.list(KEYS)])
    file = decode_file(inner.get(path), path)
    kek = load_kek(keys["new" in way])
    name = rng.choice(("000", "zzz"))
    if way.startswith("other"):
        inner.put(*new_file(kek, dict.fromkeys(file.wrapped(), rng.randbytes(32)), name, file.archive_id))
        return
    junk = json.loads(inner.get(path)) | {"kek": kek.name}
    junk["keys"] = dict.fromkeys(junk["keys"], base64.b64encode(rng.randbytes(60)).decode())
    inner.put(path if way.startswith("overwritten") else f"{KEYS}{name}.json", json.dumps(junk).encode())


def readable(inner: FileStore, keys: tuple[str, str], names: dict[str, bytes]) -> set[str]:
    """The objects that one of the keys opens."""
    whole = set()
    for source in keys:
        store = opened(inner, source)
        for name in names:
            try:
                if store.get(name) == b"data":
                    whole.add(name)
            except KbackupError:
                continue
    return whole


def case(folder: Path, rng: random.Random) -> tuple[str, bool]:
    """Return how the rotation ended, and whether every object opens that opened before."""
    keys = key_file(folder), key_file(folder, "new")
    inner = FileStore(folder / "archive")
    names = filled(inner, keys[0], rng.randint(1, 4))
    ways = rng.choices(_WAYS, k=rng.randint(1, 3))
    for way in ways:
        plant(inner, rng, way, keys)
    before = readable(inner, keys, names)
    try:
        rotate_keys(opened(inner, keys[0]), keys[1], 60)
        end = "rotated"
    except KbackupError as error:
        end = type(error).__name__
    return end, before <= readable(inner, keys, names)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.key_files")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    chance, ends, wrong = random.Random(arguments.seed), Counter[str](), 0
    for number in range(arguments.cases):
        with TemporaryDirectory() as made:
            ended, kept = case(Path(made), chance)
        ends[ended] += 1
        wrong += not kept
        if not kept:
            print(f"case {number} of seed {arguments.seed}: an object that opened before opens no more")
    print(f"{arguments.cases} cases, {wrong} wrong: {dict(ends)}")
    raise SystemExit(1 if wrong else 0)
