"""Text for people: foreign text (names of topics and groups, messages of brokers and stores) made safe to show, sizes,
counts, how long something took, lists of names in one line, and commands to copy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import msgspec


def printable(text: str) -> str:
    """Return text with everything escaped that could steer a terminal or break a line: controls, marks that turn the
    direction of text, surrogates."""
    if text.isprintable():
        return text
    signs = []
    for sign in text:
        signs.append(sign if sign.isprintable() else sign.encode("unicode_escape").decode())
    return "".join(signs)


def printable_lines(text: str) -> str:
    """Return text with lines of its own (a traceback) as printable text: line feeds stay, tabs become blanks."""
    return "\n".join(printable(line.expandtabs()) for line in text.split("\n"))


def json_line(value: object) -> str:
    """Return JSON in one line, with control characters escaped; text must be Unicode."""
    text = msgspec.json.encode(value).decode()
    if text.isprintable():
        return text
    return "".join(json_sign(sign) for sign in text)


def json_sign(sign: str) -> str:
    """Return a character, or JSON's escape of one that can't be shown."""
    return sign if sign.isprintable() else json.dumps(sign)[1:-1]


def _sign_of(octet: int) -> int:
    return octet if 32 <= octet < 127 else ord(".")


_SIGNS = bytes(_sign_of(octet) for octet in range(256))
"""What stands for each byte beside its digits: itself, or a dot if it has no sign in ASCII."""


def hex_lines(data: bytes) -> Iterator[str]:
    """Yield lines as `hexdump -C` prints them."""
    for at in range(0, len(data), 16):
        piece = data[at : at + 16]
        octets = f"{piece[:8].hex(' ')}  {piece[8:].hex(' ')}"
        signs = piece.translate(_SIGNS).decode("ascii")
        yield f"{at:08x}  {octets:<49} |{signs}|"


def ends(text: str, tail: int) -> tuple[str, str]:
    """Return text without its last `tail` characters, and these characters.

    Long names differ mostly at their ends: whoever must shorten a name cuts its first part."""
    at = max(len(text) - tail, 0)
    return text[:at], text[at:]


def shorten(text: str, width: int) -> str:
    """Return text in at most `width` characters (2 or more): an ellipsis stands for the middle of a longer text."""
    if len(text) <= width:
        return text
    head, tail = ends(text, (width - 1) // 2)
    room = width - 1 - len(tail)
    return f"{head[:room]}\N{HORIZONTAL ELLIPSIS}{tail}"


# Numbers and lists of names in messages, and the form of ids.

ArchiveId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$", max_length=32)]
"""The id of an archive. Users' key commands get it: no other text may reach their scripts."""
SomeArchiveId = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{32})?\Z")]
"""The id of an archive, or '' for none."""


def join_names(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Join the first names, with the number of the others: 'a, b and 3 more', or between '; ' 'a; b; and 3 more'."""
    joined = between.join(names[:most])
    if len(names) <= most:
        return joined
    comma = "" if between == ", " else between.rstrip()
    return f"{joined}{comma} and {len(names) - most:,} more"


def words_of(text: str) -> list[str]:
    """Return the words between commas, without blanks around them."""
    words = [word.strip() for word in text.split(",")]
    return [word for word in words if word]


def plural(number: int, noun: str) -> str:
    """1 and "group" is "1 group"; 2,000 are "2,000 groups"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def address_text(host: str, port: int) -> str:
    """Return an address as people write it: an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def human_size(nbytes: float) -> str:
    """1536 is "1.5 KiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024 or unit == "PiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def human_count(number: float) -> str:
    """1234567 is "1,234,567"; from ten million on "12.3M"."""
    if abs(number) < 10_000_000:
        return f"{number:,.0f}"
    for limit, divisor, unit in ((1e9, 1e6, "M"), (1e12, 1e9, "G"), (float("inf"), 1e12, "T")):
        if abs(number) < limit:
            return f"{number / divisor:.1f}{unit}"
    raise ValueError(f"{number} is not a number to count with")


def human_total(seconds: Mapping[str, float]) -> str:
    """Return how long several phases took in all, of the seconds of each."""
    return human_duration(sum(seconds.values()))


def human_duration(seconds: float) -> str:
    """Return how long something took: 3725 is "1h02m", 65 is "1m05s", 4 is "4s". For ages and limits, which may be
    days, there is `times.duration_text`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


# Commands as text, to be copied from a message into a shell.


def kbackup_command(*words: str) -> str:
    return shell_line("kbackup", *words)


def kafka_command(tool: str, servers: str, *words: str) -> str:
    """Return a call of one of Kafka's own tools, such as `kafka-topics`. A secured cluster also needs
    `--command-config FILE`."""
    return shell_line(f"{tool}.sh", "--bootstrap-server", servers, *words)


def shell_line(*words: str) -> str:
    """Return a command of printable characters that means `words` in bash, zsh and ksh."""
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    """Quote a word, if it needs quotes. Control characters need a `$'…'`."""
    if not word.isprintable():
        escaped = "".join(_escaped(sign) for sign in word)
        return f"$'{escaped}'"
    quoted = shlex.quote(word)
    if quoted == word and word.startswith("="):
        # zsh would replace a bare =name by the path of the program of that name.
        return f"'{word}'"
    return quoted


def _escaped(sign: str) -> str:
    if sign in "\\'":
        return f"\\{sign}"
    if sign.isprintable():
        return sign
    # An argument or a file name that is not UTF-8 has its bytes as halves of surrogate pairs.
    is_byte = "\udc80" <= sign <= "\udcff"
    encoded = sign.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in encoded)


def name_values(text: str) -> dict[str, str]:
    """Return the values of "name=value,name=value", as SCRAM writes its messages, by name. A value may have equals
    signs of its own, but no comma; what has no equals sign is left out."""
    values: dict[str, str] = {}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if equals:
            values[name] = value
    return values
