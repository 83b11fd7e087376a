"""Commands as text, to be copied from a message into a shell."""

from __future__ import annotations

import shlex


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
