package org.apache.kafka.connect.mirror;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.OptionalLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/**
 * What Kafka's own OffsetSyncStore answers. Commands on stdin, one a line:
 *   begin BOOLEAN      a new store; whether it forgets what it reads before its first end of the topic
 *   sync KEY VALUE     the next record of the topic, in hexadecimal
 *   end                the end of the topic at the start
 *   ask OFFSET         prints the translation, or "none"
 */
class SyncStore {
    private static class Store extends OffsetSyncStore {
        private final List<ConsumerRecord<byte[], byte[]>> before;

        Store(List<ConsumerRecord<byte[], byte[]>> before) {
            this.before = before;
        }

        @Override
        void backingStoreStart() {
            before.forEach(this::handleRecord);
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answers = new StringBuilder();
        List<ConsumerRecord<byte[], byte[]>> before = new ArrayList<>();
        Store store = null;
        boolean forgets = false;
        OffsetSync sync = null;
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "begin" -> {
                    before = new ArrayList<>();
                    store = null;
                    forgets = Boolean.parseBoolean(words[1]);
                }
                case "sync" -> {
                    ConsumerRecord<byte[], byte[]> record = record(words[1], words[2]);
                    sync = OffsetSync.deserializeRecord(record);
                    if (store == null) {
                        before.add(record);
                    } else {
                        store.handleRecord(record);
                    }
                }
                case "end" -> {
                    store = new Store(before);
                    store.start(forgets);
                }
                case "ask" -> {
                    OptionalLong answer =
                        store.translateDownstream("group", sync.topicPartition(), Long.parseLong(words[1]));
                    answers.append(answer.isPresent() ? answer.getAsLong() : "none").append('\n');
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.out.print(answers);
    }

    private static ConsumerRecord<byte[], byte[]> record(String key, String value) {
        HexFormat hex = HexFormat.of();
        return new ConsumerRecord<>("mm2-offset-syncs.A.internal", 0, 0L, hex.parseHex(key), hex.parseHex(value));
    }
}
