// A Kafka Streams application: bootstrap servers, application id, directory, what it does, how many records it reads
// before it ends, and topics.
//
// `print` needs no topics of its own. It prints a line for each record: topic, partition, offset, timestamp (0 if the
// record has none), key, value, and name and value of each header, with tabs between; bytes in base64, and `-` for null.
// `count` counts records by key, and wants a topic for its counts.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Base64;
import java.util.Map;
import java.util.Properties;
import java.util.StringJoiner;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.TimestampExtractor;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.Stores;

class ReadingStream {
    public static void main(String[] arguments) throws Exception {
        var properties = new Properties();
        properties.putAll(Map.of(
            "bootstrap.servers", arguments[0], "application.id", arguments[1], "state.dir", arguments[2],
            "auto.offset.reset", "earliest", "default.timestamp.extractor", TimeOrNone.class,
            "default.key.serde", Serdes.ByteArraySerde.class, "default.value.serde", Serdes.ByteArraySerde.class));
        var left = new AtomicInteger(Integer.parseInt(arguments[4]));
        var end = new CompletableFuture<Void>();
        var builder = new StreamsBuilder();
        var stream = builder.<byte[], byte[]>stream(Arrays.asList(arguments).subList(5, arguments.length));
        if (arguments[3].equals("count")) {
            stream.groupByKey().count(Materialized.as(Stores.inMemoryKeyValueStore("counts")));
        } else {
            stream.process(Printing::new).foreach((key, value) -> {
                if (left.decrementAndGet() == 0) {
                    end.complete(null);
                }
            });
        }
        var streams = new KafkaStreams(builder.build(), properties);
        streams.setUncaughtExceptionHandler(error -> {
            end.completeExceptionally(error);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        try {
            end.orTimeout(90, TimeUnit.SECONDS).get();
        } catch (ExecutionException failed) {
            throw new IllegalStateException(left + " records have not come", failed.getCause());
        } finally {
            streams.close(Duration.ofSeconds(30));
        }
    }

    public static class TimeOrNone implements TimestampExtractor {
        @Override
        public long extract(ConsumerRecord<Object, Object> record, long before) {
            return Math.max(record.timestamp(), 0);
        }
    }

    private static class Printing extends ContextualProcessor<byte[], byte[], byte[], byte[]> {
        @Override
        public void process(Record<byte[], byte[]> record) {
            var place = context().recordMetadata().get();
            var line = new StringJoiner("\t");
            line.add(place.topic()).add("" + place.partition()).add("" + place.offset()).add("" + record.timestamp());
            line.add(text(record.key())).add(text(record.value()));
            for (Header header : record.headers()) {
                line.add(text(header.key().getBytes(StandardCharsets.UTF_8))).add(text(header.value()));
            }
            System.out.println(line);
            context().forward(record);
        }

        private static String text(byte[] bytes) {
            return bytes == null ? "-" : Base64.getEncoder().encodeToString(bytes);
        }
    }
}
