"""Regular expressions of clients that name topics."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from kbackup.serve.groups.consumer import Topics


def matching_topics(pattern: str, topics: Topics) -> frozenset[str]:
    """Return the names of the topics that match a regular expression as a whole. Raise `ValueError` if it is none.

    Arrow brings RE2, the kind that brokers use. Python's own expressions can take hours for one name, and a client
    could stop everybody with one.
    """
    # Arrow looks at an expression only where there is a name for it.
    names = pa.array([*topics, ""], pa.string())
    try:
        matches = pc.match_substring_regex(names, pattern=f"^(?:{pattern})$")
    except pa.ArrowInvalid as error:
        raise ValueError(f"SubscribedTopicRegex `{pattern}` is not a valid regular expression") from error
    return frozenset(name for name, is_match in zip(topics, matches.to_pylist(), strict=False) if is_match)
