// A Kafka Streams application that counts records by key, with its state in a directory: bootstrap servers, topic,
// application id, directory, and how many records it reads before it ends. Prints how many records it had to read of its
// changelog to have its state again, as `restored<TAB>n`, and then each key with its count.

import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;

class CountingStream {
    public static void main(String[] arguments) throws Exception {
        var properties = new Properties();
        properties.putAll(Map.of(
            "bootstrap.servers", arguments[0], "application.id", arguments[2], "state.dir", arguments[3],
            "processing.guarantee", "exactly_once_v2", "commit.interval.ms", 50, "replication.factor", 1,
            "statestore.cache.max.bytes", 0, "auto.offset.reset", "earliest",
            "default.key.serde", Serdes.StringSerde.class, "default.value.serde", Serdes.StringSerde.class));
        var left = new CountDownLatch(Integer.parseInt(arguments[4]));
        var restored = new AtomicLong();
        var builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[1])
            .groupByKey()
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .foreach((key, count) -> left.countDown());
        var streams = new KafkaStreams(builder.build(), properties);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setGlobalStateRestoreListener(new StateRestoreListener() {
            public void onRestoreStart(TopicPartition partition, String store, long start, long end) {}
            public void onBatchRestored(TopicPartition partition, String store, long end, long count) {}
            public void onRestoreEnd(TopicPartition partition, String store, long total) { restored.addAndGet(total); }
        });
        streams.start();
        if (!left.await(90, TimeUnit.SECONDS)) {
            System.err.println(left.getCount() + " records did not come; the application is " + streams.state());
            Runtime.getRuntime().halt(1);
        }
        System.out.println("restored\t" + restored.get());
        var counts = streams.store(
            StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.<String, Long>keyValueStore()));
        try (var all = counts.all()) {
            all.forEachRemaining(each -> System.out.println(each.key + "\t" + each.value));
        }
        streams.close(Duration.ofSeconds(30));
    }
}
