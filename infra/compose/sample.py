"""Write five orders a second into a topic, and read them as a consumer group: python sample.py ADDRESS TOPIC GROUP"""

from __future__ import annotations

import itertools
import json
import sys

from confluent_kafka import Consumer, Producer


def main(address: str, topic: str, group: str) -> None:
    producer = Producer({"bootstrap.servers": address})
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 1000,
        }
    )
    for number in itertools.count():
        order = {"number": number, "article": f"article-{number % 7}", "pieces": number % 3 + 1}
        producer.produce(topic, key=f"customer-{number % 50}", value=json.dumps(order))
        producer.poll(0)
        if number == 0:
            producer.flush()  # the first record makes the topic
            consumer.subscribe([topic])
        consumer.poll(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
