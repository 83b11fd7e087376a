"""What is compiled by numba, or reads and writes librdkafka's memory. README.md, beside this file, explains it."""
