"""Words that names must not use, with the words to use in their place."""

from __future__ import annotations

RIDDLES = {
    "found": "name the thing: entry, matches, state",
    "it": "name the thing",
    "left": "remaining, skipped or excluded",
    "ones": "name the things",
    "place": "destination, location, address or index",
    "places": "destinations, locations, addresses or indexes",
    "said": "answer, message or reported",
    "some": "subset, sample or the name of the things",
    "theirs": "name the owner: source, peer, other",
    "them": "name the things",
    "those": "name the things",
    "told": "reported, notes or answer",
    "wanted": "selected, requested, required or expected",
    "what": "kind, subject, label or message",
    "whoever": "name the thing",
}
"""In no name of a function, parameter, class, module or attribute, nor of a local that lives long."""

LOCAL_RIDDLES = {
    "held": "gathered, blocks, current or the name of the things",
    "there": "existing, present, current or the name of the things",
}
"""No names of locals that live long, nor of attributes that are assigned on `self`."""

TEST_OPENINGS = ("test_it_", "test_they_", "test_what_", "test_who_", "test_whoever_")
"""No test's name begins so: a name says who does what, or in which state a thing is."""

LOCAL_LINES = 5
"""A local lives long whose first and last use are further apart."""

_MEANINGS = {
    "adopted conditional": ("adopt adopts adopted", "adopt is the command alone; else salvage, accept"),
    "capture": ("look looks", "capture, read or inspect"),
    "catalog": ("chain closed covered fold", "catalog, sealed state by its own name, merge"),
    "expire": ("gone", "expired, deleted, missing or lost"),
    "fence": ("seal seals sealed", "fence; of bytes: encrypt"),
    "offset map": ("gap gaps", "missing offsets, or how an offset was remapped"),
    "pin": ("keep keeps kept", "pin, retain, store or unchanged"),
    "position": ("stands", "position, with its first word"),
    "resume": ("again", "resume, repeat or second"),
    "restore point": ("seq", "number or point"),
    "segment": ("part parts piece pieces", "segment, block, range, unit, upload part or offset map part"),
    "selection": ("choose chooses chosen", "select, selection or filter"),
    "orphan": ("waste", "orphan"),
}

RENAMED = {word: term for words, term in _MEANINGS.values() for word in words.split()}
"""In no public name: the glossary has another word for the thing."""

PHRASES = [
    ("not", "found"),
    ("in", "place"),
    ("upload", "part"),
    ("upload", "parts"),
    ("part", "buffer"),
    ("map", "part"),
    ("map", "parts"),
    ("metadata", "part"),
]
"""Words that are plain in this order."""

OPENINGS = ("For", "How", "It", "That", "Those", "What", "Where", "Whether", "Who", "Whoever", "Whose")
"""No docstring's first line begins with these."""

VERBS = {
    "unset",
    "shorten",
    "put",
    "add",
    "adopt",
    "back",
    "begin",
    "bring",
    "cast",
    "change",
    "check",
    "choose",
    "compare",
    "copy",
    "create",
    "decode",
    "delete",
    "drill",
    "encrypt",
    "end",
    "export",
    "find",
    "fix",
    "free",
    "give",
    "grant",
    "install",
    "keep",
    "leave",
    "let",
    "lower",
    "make",
    "map",
    "mount",
    "move",
    "name",
    "omit",
    "pass",
    "raise",
    "read",
    "release",
    "remove",
    "rename",
    "repair",
    "repeat",
    "replace",
    "restart",
    "restore",
    "reset",
    "resume",
    "retry",
    "rotate",
    "run",
    "see",
    "select",
    "send",
    "set",
    "split",
    "start",
    "stop",
    "take",
    "try",
    "undo",
    "unlock",
    "update",
    "upgrade",
    "use",
    "wait",
    "write",
}
"""A hint begins with one of these: it says what to do."""
