"""The releases of Spark, Python and Kafka that people have: kbackup's main jobs run with each of them."""
