"""Foreign text (names of topics and groups, messages of brokers and stores) made safe to show, and lists of names in
one line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec


def printable(text: str) -> str:
    """`text` with all escaped that could steer a terminal or break a line: controls, bidi marks, surrogates."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def printable_lines(text: str) -> str:
    """Return text with lines of its own (a traceback) as printable text: line feeds stay, tabs become blanks."""
    return "\n".join(printable(line.expandtabs()) for line in text.split("\n"))


def json_line(value: object) -> str:
    """Return JSON in one line, with control characters escaped; text must be Unicode."""
    text = msgspec.json.encode(value).decode()
    return text if text.isprintable() else "".join(map(json_sign, text))


def json_sign(sign: str) -> str:
    """Return a character, or JSON's escape of one that can't be shown."""
    return sign if sign.isprintable() else json.dumps(sign)[1:-1]


def ends(text: str, tail: int) -> tuple[str, str]:
    """`text` without its last `tail` characters, and those: long names differ mostly at their ends, so that only the
    first of the two may be cut off."""
    at = max(len(text) - tail, 0)
    return text[:at], text[at:]


def shorten(text: str, width: int) -> str:
    """`text` in `width` characters at most (2 or more), with an ellipsis in place of its middle where it is longer."""
    if len(text) <= width:
        return text
    head, tail = ends(text, (width - 1) // 2)
    return f"{head[: width - 1 - len(tail)]}\N{HORIZONTAL ELLIPSIS}{tail}"


# Numbers and lists of names in messages, and the form of ids.

ArchiveId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$", max_length=32)]
"""The id of an archive. Users' key commands get it: no other text may reach their scripts."""
SomeArchiveId = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{32})?\Z")]
"""The id of an archive, or '' for none."""


def join_names(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Join the first names, with the number of the others: 'a, b and 3 more', or between '; ' 'a; b; and 3 more'."""
    comma = "" if between == ", " else between.rstrip()
    more = f"{comma} and {len(names) - most:,} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def words_of(text: str) -> list[str]:
    """Return the words between commas, without blanks around them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def plural(number: int, noun: str) -> str:
    """1 and "group" is "1 group"; 2,000 are "2,000 groups"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


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
    """3725 is "1h02m", 65 is "1m05s", 4 is "4s"."""
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
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """Quote a word. zsh would replace a bare one that begins with '='; control characters need a `$'…'`."""
    if not word.isprintable():
        return f"$'{''.join(map(_escaped, word))}'"
    return f"'{word}'" if word.startswith("=") and shlex.quote(word) == word else shlex.quote(word)


def _escaped(sign: str) -> str:
    if sign in "\\'":
        return f"\\{sign}"
    bytes_of_path = "\udc80" <= sign <= "\udcff"  # of an argument or a file name that is not UTF-8
    encoded = sign.encode("utf-8", "surrogateescape" if bytes_of_path else "surrogatepass")
    return sign if sign.isprintable() else "".join(f"\\{byte:03o}" for byte in encoded)
