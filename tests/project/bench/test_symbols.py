"""CPU by symbol, from what perf prints."""

from __future__ import annotations

from scripts.bench.symbols import of_workers, parse, report

PRINTED = """\
   rdk:broker1   20/21    10.000000:      7f00 LZ4_decompress_safe+0x10 (/venv/librdkafka-0cb94173.so.1)
        python   20/20     9.500000:      7f01 import_find_and_load+0x1 (/usr/lib/libpython3.11.so.1.0)
        python   20/20    10.500000:      7f01 [unknown] (/tmp/perf-20.map)
 data-plane kaf  30/31    10.600000: ffffffff clear_page_erms+0x7 ([kernel.kallsyms])
   rdk:broker1   20/21    11.000000:      7f00 LZ4_decompress_safe+0x99 (/venv/librdkafka-0cb94173.so.1)
perf: an answer of another kind
"""


def test_samples_of_workers_while_they_read() -> None:
    samples = of_workers(list(parse(PRINTED.splitlines())))
    assert [(s.pid, s.time, s.library, s.symbol) for s in samples] == [
        (20, 10.0, "librdkafka-0cb94173.so.1", "LZ4_decompress_safe"),
        (20, 10.5, "perf-20.map", "[unknown]"),
        (20, 11.0, "librdkafka-0cb94173.so.1", "LZ4_decompress_safe"),
    ]


def test_report_in_microseconds_a_record() -> None:
    lines = report(of_workers(list(parse(PRINTED.splitlines()))), 1001, 1).splitlines()
    assert lines[0] == "3.00 us a record"
    assert lines[3].split() == ["2.000", "librdkafka"]
    assert lines[-1].split() == ["2.000", "LZ4_decompress_safe", "(librdkafka-0cb94173.so.1)"]


def test_process_with_few_samples_is_not_a_worker() -> None:
    many = PRINTED.splitlines()[0].replace("20/21", "40/41")
    samples = of_workers(list(parse([*[many] * 30, *PRINTED.splitlines()])))
    assert {s.pid for s in samples} == {40}
