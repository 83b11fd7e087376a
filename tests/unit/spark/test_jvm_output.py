"""What Ivy prints of the jars of a session: nothing of it is shown, and a failure says which jar and why."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from kbackup.spark.jvm_output import JarResolution, pass_on

BEGIN = """\
:: loading settings :: url = jar:file:/x/ivy-2.5.3.jar!/org/apache/ivy/core/settings/ivysettings.xml
Ivy Default Cache set to: /x/cache
com.example#nothing added as a dependency
:: resolving dependencies :: org.apache.spark#spark-submit-parent-7dea4e78;1.0
\tconfs: [default]
You probably access the destination server through a proxy server that is not well configured.
"""
FOUND = """\
\tfound com.example#nothing;1.0 in central
downloading https://repo.example/com/example/nothing-1.0.jar ...
\t[SUCCESSFUL ] com.example#nothing;1.0!nothing.jar (88ms)

:: problems summary ::
:::: WARNINGS
\tHost other.example not found. url=https://other.example/nothing-1.0.pom

:: USE VERBOSE OR DEBUG MESSAGE LEVEL FOR MORE DETAILS
:: retrieving :: org.apache.spark#spark-submit-parent-7dea4e78
\tconfs: [default]
\t1 artifacts copied, 0 already retrieved (276kB/7ms)
"""
NOT_FOUND = """\
:: problems summary ::
:::: WARNINGS
\tHost nowhere.example not found. url=https://nowhere.example/nothing-1.0.pom

\tHost nowhere.example not found. url=https://nowhere.example/nothing-1.0.jar

\t\tmodule not found: com.example#nothing;1.0

:::: ERRORS
\tServer access error at url http://127.0.0.1:1/nothing-1.0.pom (java.net.ConnectException: Connection refused)

\tServer access error at url http://127.0.0.1:1/nothing-1.0.jar (java.net.ConnectException: Connection refused)

Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: com.example#nothing;1.0: not found]
\tat org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:539)
"""


def printed(text: str, jars: JarResolution, capfd: pytest.CaptureFixture[str]) -> str:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as pipe:
        pipe.write(text)
    pass_on(reading, threading.Event(), jars)
    return capfd.readouterr().err


def test_what_is_said_of_jars_that_are_there_or_downloaded_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    jars = JarResolution()
    assert printed(f"before\n{BEGIN}{FOUND}ERROR after\n", jars, capfd) == "before\nERROR after\n"
    assert jars.failure() is None


def test_a_failure_says_which_jar_and_why_and_shows_no_more(capfd: pytest.CaptureFixture[str]) -> None:
    jars = JarResolution()
    assert printed(BEGIN + NOT_FOUND, jars, capfd) == ""
    assert jars.failure() == (
        "unresolved dependency: com.example#nothing;1.0: not found; Host nowhere.example not found; "
        "Server access error at url http://127.0.0.1:1/nothing-1.0.pom (java.net.ConnectException: Connection refused)"
        "; and 1 more"
    )


def test_what_is_no_error_of_jars_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    """A JVM that failed after its jars were there, and one that is no user of Ivy."""
    jars = JarResolution()
    error = 'Exception in thread "main" java.lang.OutOfMemoryError: heap\n'
    assert printed(BEGIN + FOUND + error, jars, capfd) == error
    assert jars.failure() is None
    assert printed(error, JarResolution(), capfd) == error


def test_a_jvm_that_is_killed_amid_its_downloads_leaves_what_it_said(capfd: pytest.CaptureFixture[str]) -> None:
    jars = JarResolution()
    assert printed(BEGIN + "Killed\n", jars, capfd) == (BEGIN + "Killed\n").expandtabs()
    assert jars.failure() is None


def test_a_verbose_log_has_all_that_is_said_of_jars(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kbackup.spark"):
        printed(BEGIN + FOUND, JarResolution(), capfd)
    assert "downloading https://repo.example/com/example/nothing-1.0.jar ..." in caplog.messages
