"""The splitter and the limits of `scripts.dev.sentences`."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.dev.sentences import LONGEST, MEAN, Sentence, main, measure


def texts(markdown: str) -> list[str]:
    return [sentence.text for sentence in measure(markdown).sentences]


def test_sentences_end_at_marks_and_at_the_end_of_a_paragraph() -> None:
    assert texts("One two. Three\nfour! (Five six.) Seven\n\neight: nine") == [
        "One two.",
        "Three four!",
        "(Five six.)",
        "Seven",
        "eight: nine",
    ]


def test_list_items_are_sentences_of_their_own() -> None:
    assert texts("Before:\n- one\n  goes on\n* two\n1. three. Four") == [
        "Before:",
        "one goes on",
        "two",
        "three.",
        "Four",
    ]


def test_headings_tables_and_code_blocks_are_no_sentences() -> None:
    markdown = (
        "# Title\nText, then\n```sh\nrun this. Now\n```\nmore.\n\n| a | b |\n|---|---|\n| c. D | e |\nEnd."
    )
    assert texts(markdown) == ["Text, then", "more.", "End."]


def test_code_blocks_inside_list_items() -> None:
    assert texts("1. Run\n   ```sh\n   make test\n   ```\n   and wait.\n2. Stop.") == [
        "Run",
        "and wait.",
        "Stop.",
    ]


def test_a_fence_inside_a_longer_fence_is_code() -> None:
    assert texts("````\n```\ncode\n```\ncode\n````\nText.") == ["Text."]


def test_inline_code_is_one_word() -> None:
    assert measure("Run `kbackup restore --dry-run. No\nmore` or `` a ` b `` or `.`!").sentences == [
        Sentence(1, 6, "Run `kbackup restore --dry-run. No more` or `` a ` b `` or `.`!")
    ]


def test_links_count_as_their_text() -> None:
    assert measure("See [the page](a/long\npath.md#x) and ![an image](i.png).\nNext.").sentences == [
        Sentence(1, 6, "See the page and an image."),
        Sentence(3, 1, "Next."),
    ]


def test_abbreviations_versions_and_lone_marks() -> None:
    assert measure("A store, e.g. S3 3.1, - here - is near.").sentences == [
        Sentence(1, 8, "A store, e.g. S3 3.1, - here - is near.")
    ]


def test_the_line_of_a_sentence_is_that_of_its_first_word() -> None:
    assert [sentence.line for sentence in measure("# A\n\none.\ntwo\nthree. Four\n\n- five").sentences] == [
        3,
        4,
        5,
        7,
    ]


def test_limits() -> None:
    longest = "word " * LONGEST
    assert measure(f"{longest}. A. B. C.").is_clean
    assert [s.words for s in measure(f"A. {longest} more. B.").too_long] == [LONGEST + 1]
    assert measure("word " * (MEAN - 1)).is_clean
    assert not measure("word " * MEAN).is_clean
    assert measure("").is_clean


def test_main_names_sentences_that_are_too_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean, long = tmp_path / "clean.md", tmp_path / "long.md"
    clean.write_text("Short.\n")
    long.write_text("# Long\n\n" + "word " * 40 + "\n")
    assert main([str(clean)]) == 0
    assert capsys.readouterr().out == f"clean  {clean}: 1 words, 1 sentences, mean 1.0, longest 1\n"
    assert main([str(clean), str(long)]) == 1
    assert f"  {long}:3: 40 words: word word" in capsys.readouterr().out
