// What Kafka's own consumer gets to read as a member of a group that may not reset: bootstrap server, group, topic,
// and how many records to wait for. Prints one line a record: partition, offset, value.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

class Resume {
    public static void main(String[] arguments) {
        Map<String, Object> properties = Map.of(
            "bootstrap.servers", arguments[0],
            "group.id", arguments[1],
            "auto.offset.reset", "none",
            "enable.auto.commit", "false",
            "isolation.level", "read_committed");
        int left = Integer.parseInt(arguments[3]);
        long until = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties, text, text)) {
            consumer.subscribe(List.of(arguments[2]));
            while (left > 0 && System.nanoTime() < until) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(record.partition() + " " + record.offset() + " " + record.value());
                    left--;
                }
            }
        }
    }
}
