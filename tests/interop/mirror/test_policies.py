"""Replication policies and filters beside Kafka's own classes, for random and hostile names."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kbackup.mirror.filters import java_pattern
from kbackup.mirror.flow import DefaultPolicy, IdentityPolicy
from tests.support.java import compiled

NAMES = 24_000
SEPARATORS = (".", "_", "-", "..", "__", "->", "$", "|", "*", "\\E", "(", "é", "heartbeats", "🙂")
PARTS = (
    *("", "A", "B", "us-west", "orders", "heartbeats", "checkpoints", "internal", "mm2", "mm2-offset-syncs", "x"),
    *("__", ".", "..", "mm2-offset-syncs.A.internal", "A.checkpoints.internal", "é", "🙂", " ", "null", "\t\n"),
)
ALPHABET = "abAB01._-$*+?()[]{}|\\^é🙂 \x00\x1f"

ATOMS = (
    *("a", "b", "ab", ".", "\\.", "\\d", "\\w", "\\s", "[ab]", "[^ab]", "[a-c]", "[]a]", "[\\w.]", "(a)", "(?:b|c)"),
    *("(?i)a", "(?i:B)", "(?=a)", "(?!a)", "(?<=a)", "(?>a|b)", "(?<n>a)", "\\Qa.b\\E", "\\p{Alpha}", "\\x61", "$"),
    *("^", "|", "-", "_", "\\-", "\\u0061", "\\t", "\\e", "é", "[é-ü]", "\\R", "\\1", "[a&&b]", "(?s).", "\\h", "{"),
    *("}", "]", "[a-]", "\\Z", "\\z", "\\A", "\\b", "(", ")", "[", "*", "&", "[&]", "#", " ", "~"),
)
REPEATS = ("", "", "", "", "*", "+", "?", "*?", "{2}", "{1,2}", "{1,}", "++", "{,2}")
MATCHED = "ab"


def test_policies_answer_as_the_java_classes_do() -> None:
    chance = random.Random(1)
    asked = [_question(chance) for _ in range(NAMES)]
    answers = _ask("policy", asked)
    for question, answer in zip(asked, answers, strict=True):
        assert _ours(*question) == answer, question


def test_patterns_match_as_javas_do() -> None:
    """kbackup refuses every pattern that Java refuses; other patterns match as in Java."""
    chance = random.Random(2)
    asked = [(_pattern(chance), _name(chance)) for _ in range(NAMES)]
    compared = 0
    for (pattern, name), answer in zip(asked, _ask("regex", asked), strict=True):
        try:
            ours = java_pattern(pattern).fullmatch(name)
        except ValueError:
            continue
        compared += 1
        assert str(ours).lower() == answer, (pattern, name)
    assert compared > NAMES // 4


def _question(chance: random.Random) -> tuple[str, str, str, str, str]:
    separator = chance.choice(SEPARATORS)
    if chance.random() < 0.7:
        topic = chance.choice((separator, separator, ".")).join(chance.choices(PARTS, k=chance.randint(1, 6)))
    else:
        topic = "".join(chance.choices(ALPHABET, k=chance.randint(0, 12)))
    return (
        chance.choice(("Default", "Identity")),
        separator,
        chance.choice(("true", "false")),
        chance.choice(("A", "B", "us-west", "a.b", "é")),
        topic,
    )


def _ours(kind: str, separator: str, internal: str, alias: str, topic: str) -> str:
    policy = (
        DefaultPolicy(separator, internal == "true")
        if kind == "Default"
        else IdentityPolicy(separator, internal == "true", alias)
    )
    flags = (
        policy.is_heartbeats_topic(topic),
        policy.is_checkpoints_topic(topic),
        policy.is_mm2_internal_topic(topic),
        policy.is_internal_topic(topic),
    )
    names = (
        policy.format_remote_topic(alias, topic),
        _text(policy.topic_source(topic)),
        _text(policy.upstream_topic(topic)),
        policy.original_topic(topic),
        policy.heartbeats_topic(),
        policy.checkpoints_topic(alias),
        policy.offset_syncs_topic(alias),
    )
    return "|".join((*names, *(str(flag).lower() for flag in flags)))


def _text(name: str | None) -> str:
    return "null" if name is None else name


def _pattern(chance: random.Random) -> str:
    atoms = chance.choices(ATOMS, k=chance.randint(1, 4))
    return "".join(atom + chance.choice(REPEATS) for atom in atoms)


def _name(chance: random.Random) -> str:
    letters = MATCHED if chance.random() < 0.6 else "abcABü.-_ \n\r1é&"
    return "".join(chance.choices(letters, k=chance.randint(0, 4)))


def _ask(kind: str, questions: Sequence[Sequence[str]]) -> list[str]:
    """Return Java's answers, one a question; `kind` is 'policy' or 'regex'."""
    lines = ("\t".join((kind, *map(_escape, question))) + "\n" for question in questions)
    with compiled("Policies.java") as java:
        return [_unescape(line) for line in java.run("Policies", stdin="".join(lines)).splitlines()]


def _escape(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]
    return "".join(f"\\u{code:04x}" if code < 32 or code > 126 or code == 92 else chr(code) for code in codes)


def _unescape(text: str) -> str:
    out, at = [], 0
    while at < len(text):
        if text[at] != "\\":
            out.append(text[at])
            at += 1
        elif text[at + 1] == "u":
            out.append(chr(int(text[at + 2 : at + 6], 16)))
            at += 6
        else:
            out.append(text[at + 1])
            at += 2
    return "".join(out).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
