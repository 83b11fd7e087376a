// An application that copies a topic, each record exactly once, until it is stopped: kind (client or streams), bootstrap
// servers, source, target, and its group, which also names its transactions.

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

class Copy {
    public static void main(String[] arguments) {
        String servers = arguments[1], source = arguments[2], target = arguments[3], group = arguments[4];
        if (arguments[0].equals("streams")) {
            stream(servers, source, target, group);
            return;
        }
        Map<String, Object> writing = Map.of("bootstrap.servers", servers, "transactional.id", group,
            "transaction.timeout.ms", 10000);
        Map<String, Object> reading = Map.of("bootstrap.servers", servers, "group.id", group,
            "auto.offset.reset", "earliest", "enable.auto.commit", false, "isolation.level", "read_committed");
        var bytes = new ByteArrayDeserializer();
        while (true) {
            try (var producer = new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer());
                    var consumer = new KafkaConsumer<>(reading, bytes, bytes)) {
                producer.initTransactions();
                consumer.subscribe(List.of(source));
                while (true) copy(consumer, producer, target);
            } catch (KafkaException error) {
                System.err.println("begins anew after " + error);
            }
        }
    }

    static void copy(Consumer<byte[], byte[]> consumer, Producer<byte[], byte[]> producer, String target) {
        var records = consumer.poll(Duration.ofMillis(100));
        if (records.isEmpty()) return;
        producer.beginTransaction();
        for (var record : records)
            producer.send(new ProducerRecord<>(target, record.partition(), null, record.value()));
        producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
        producer.commitTransaction();
    }

    static void stream(String servers, String source, String target, String group) {
        var properties = new Properties();
        properties.putAll(Map.of("bootstrap.servers", servers, "application.id", group,
            "state.dir", System.getProperty("java.io.tmpdir"), "processing.guarantee", "exactly_once_v2",
            "commit.interval.ms", 20, "transaction.timeout.ms", 10000,
            "default.key.serde", Serdes.ByteArraySerde.class, "default.value.serde", Serdes.ByteArraySerde.class));
        var builder = new StreamsBuilder();
        builder.stream(source).to(target);
        var streams = new KafkaStreams(builder.build(), properties);
        streams.setUncaughtExceptionHandler(error -> StreamThreadExceptionResponse.REPLACE_THREAD);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
