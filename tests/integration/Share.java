// A member of a share group that begins with the first record, where the group has no start offset, and acknowledges
// some records: bootstrap server, group, topic, and how many. Prints one line for each: offset, value. One by one, as a
// broker stores a group's new start offset with its next acknowledgement.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

class Share {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> properties = Map.of(
            "bootstrap.servers", arguments[0],
            "group.id", arguments[1],
            "share.acknowledgement.mode", "explicit");
        try (Admin admin = Admin.create(properties)) {
            ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, arguments[1]);
            admin.incrementalAlterConfigs(Map.of(group, List.of(
                set("share.auto.offset.reset", "earliest"), set("share.isolation.level", "read_committed")))).all().get();
        }
        int left = Integer.parseInt(arguments[3]);
        long until = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        StringDeserializer text = new StringDeserializer();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(properties, text, text)) {
            consumer.subscribe(List.of(arguments[2]));
            while (left > 0 && System.nanoTime() < until) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    consumer.acknowledge(record, left > 0 ? AcknowledgeType.ACCEPT : AcknowledgeType.RELEASE);
                    if (left-- > 0) {
                        System.out.println(record.offset() + " " + record.value());
                        consumer.commitSync();
                    }
                }
            }
        }
    }

    private static AlterConfigOp set(String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
    }
}
