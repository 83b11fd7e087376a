import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Message;
import com.google.protobuf.MessageOrBuilder;
import com.google.protobuf.util.JsonFormat;
import io.apicurio.registry.resolver.ParsedSchema;
import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaDeserializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaSerializer;
import io.apicurio.registry.serde.kafka.KafkaDeserializer;
import io.apicurio.registry.serde.protobuf.MessageIndexesUtil;
import io.apicurio.registry.serde.protobuf.ProtobufDeserializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaSerializer;
import io.apicurio.registry.utils.protobuf.schema.ProtobufSchema;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Records by Apicurio's own serializers and deserializers, in the frame that Confluent's have: 0, four bytes of an id.
 *   read BOOTSTRAP REGISTRY TOPIC=KEY,VALUE...   the topics' records, a line of JSON each; KEY and VALUE are AVRO,
 *                                                PROTOBUF, JSON or STRING
 *   write BOOTSTRAP REGISTRY [FORM]              with contentId or globalId in headers, or eightBytes; writes records that stand on stdin, a line of JSON each:
 *       {"topic": …, "partition": …, "key": PART, "value": PART}, where a PART is null or
 *       {"format": …, "subject": …, "data": …} with "schemas" (AVRO: texts, the last one is the record's), or with "files" (PROTOBUF: a FileDescriptorSet in base64) and "message", its full name
 */
public class SchemaRecords {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Serializer<Object>> SERIALIZERS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[1], registry = arguments[2];
        if (arguments[0].equals("write")) {
            write(bootstrap, registry, arguments.length > 3 ? arguments[3] : "");
            return;
        }
        Map<String, List<Deserializer<?>>> topics = new HashMap<>();
        Map<String, Deserializer<?>> made = new HashMap<>();
        for (int at = 3; at < arguments.length; at++) {
            int mark = arguments[at].lastIndexOf('=');
            String[] formats = arguments[at].substring(mark + 1).split(",");
            topics.put(arguments[at].substring(0, mark), List.of(
                made.computeIfAbsent("key " + formats[0], each -> deserializer(formats[0], registry, true)),
                made.computeIfAbsent("value " + formats[1], each -> deserializer(formats[1], registry, false))));
        }
        read(bootstrap, topics);
    }

    private static void read(String bootstrap, Map<String, List<Deserializer<?>>> topics) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        Map<String, Object> properties = Map.of("bootstrap.servers", bootstrap, "fetch.max.wait.ms", 20);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties, bytes, bytes)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (String topic : topics.keySet()) {
                consumer.partitionsFor(topic).forEach(p -> partitions.add(new TopicPartition(topic, p.partition())));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    String topic = record.topic();
                    Deserializer<?> key = topics.get(topic).get(0), value = topics.get(topic).get(1);
                    Map<String, Object> line = new LinkedHashMap<>();
                    line.put("topic", topic);
                    line.put("partition", record.partition());
                    line.put("offset", record.offset());
                    line.put("key", plain(key.deserialize(topic, record.headers(), record.key())));
                    line.put("value", plain(value.deserialize(topic, record.headers(), record.value())));
                    out.println(JSON.writeValueAsString(line));
                }
            }
        }
        out.flush();
    }

    private static Deserializer<?> deserializer(String format, String registry, boolean key) {
        Deserializer<?> made = switch (format) {
            case "AVRO" -> new AvroKafkaDeserializer<Object>();
            case "JSON" -> new JsonSchemaKafkaDeserializer<JsonNode>();
            case "PROTOBUF" -> new KafkaDeserializer<ProtobufSchema, Message>(new ByIndexes()) {};
            default -> new StringDeserializer();
        };
        Map<String, Object> properties = properties(registry);
        String type = key ? "key" : "value";
        if (format.equals("JSON")) {
            properties.put("apicurio.registry.deserializer." + type + ".return-class", JsonNode.class.getName());
        }
        made.configure(properties, key);
        return made;
    }

    private static Map<String, Object> properties(String registry) {
        return new HashMap<>(Map.of(
            "apicurio.registry.url", registry,
            "apicurio.registry.use-id", "contentId",
            "apicurio.registry.id-handler", "io.apicurio.registry.serde.Default4ByteIdHandler",
            "apicurio.registry.headers.enabled", "false",
            "apicurio.registry.serde.validation-enabled", "true",
            "apicurio.registry.serde.send-type-ref", "false",
            "apicurio.registry.serde.read-type-ref", "false",
            "apicurio.registry.serde.send-indexes", "true",
            "apicurio.registry.serde.read-indexes", "true"));
    }

    /** Takes the message type from the indexes: Apicurio's own skips them, and takes the first type of the file. */
    private static class ByIndexes extends ProtobufDeserializer<Message> {
        @Override
        protected Message readData(ParsedSchema<ProtobufSchema> schema, ByteBuffer buffer, int start, int length) {
            ByteArrayInputStream in = new ByteArrayInputStream(buffer.array(), start, length);
            try {
                List<Descriptor> within = schema.getParsedSchema().getFileDescriptor().getMessageTypes();
                Descriptor type = null;
                for (int index : MessageIndexesUtil.readFrom(in)) {
                    type = within.get(index);
                    within = type.getNestedTypes();
                }
                return DynamicMessage.parseFrom(type, in);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    /** What Jackson writes as plain JSON, bytes in base64. */
    private static Object plain(Object value) throws Exception {
        if (value instanceof MessageOrBuilder message) {
            return JSON.readTree(JsonFormat.printer().preservingProtoFieldNames().print(message));
        }
        if (value instanceof IndexedRecord record) {
            Map<String, Object> fields = new LinkedHashMap<>();
            for (Schema.Field field : record.getSchema().getFields()) {
                fields.put(field.name(), plain(record.get(field.pos())));
            }
            return fields;
        }
        if (value instanceof Map<?, ?> map) {
            Map<String, Object> entries = new LinkedHashMap<>();
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                entries.put(entry.getKey().toString(), plain(entry.getValue()));
            }
            return entries;
        }
        if (value instanceof Collection<?> items) {
            List<Object> plain = new ArrayList<>();
            for (Object item : items) {
                plain.add(plain(item));
            }
            return plain;
        }
        if (value instanceof ByteBuffer buffer) {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            return bytes;
        }
        if (value instanceof GenericFixed fixed) {
            return fixed.bytes();
        }
        boolean itself = value == null || value instanceof Number || value instanceof Boolean || value instanceof JsonNode;
        return itself ? value : value.toString();
    }

    private static void write(String bootstrap, String registry, String form) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ByteArraySerializer bytes = new ByteArraySerializer();
        Map<String, Object> properties = Map.of("bootstrap.servers", bootstrap);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties, bytes, bytes)) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                JsonNode record = JSON.readTree(line);
                String topic = record.get("topic").asText();
                Headers headers = new RecordHeaders();
                byte[] key = serialized(topic, registry, form, headers, record.get("key"), true);
                byte[] value = serialized(topic, registry, form, headers, record.get("value"), false);
                producer.send(new ProducerRecord<>(topic, record.get("partition").asInt(), key, value, headers)).get();
            }
        }
    }

    private static byte[] serialized(
        String topic, String registry, String form, Headers headers, JsonNode part, boolean key
    ) throws Exception {
        if (part == null || part.isNull()) {
            return null;
        }
        String format = part.get("format").asText(), subject = part.get("subject").asText();
        if (format.equals("STRING")) {
            return part.get("data").asText().getBytes(StandardCharsets.UTF_8);
        }
        Serializer<Object> serializer = SERIALIZERS.computeIfAbsent(format + key + subject, each -> {
            Serializer<?> made = switch (format) {
                case "AVRO" -> new AvroKafkaSerializer<Object>();
                case "JSON" -> new JsonSchemaKafkaSerializer<JsonNode>();
                default -> new ProtobufKafkaSerializer<Message>();
            };
            Map<String, Object> properties = properties(registry);
            switch (form) {  // ways of Apicurio's own to name a schema
                case "contentId", "globalId" -> {
                    properties.put("apicurio.registry.headers.enabled", "true");
                    properties.put("apicurio.registry.use-id", form);
                }
                case "eightBytes" ->
                    properties.put("apicurio.registry.id-handler", "io.apicurio.registry.serde.Legacy8ByteIdHandler");
                default -> { }
            }
            properties.put("apicurio.registry.artifact.artifact-id", subject);
            properties.put("apicurio.registry.find-latest", "true");
            if (format.equals("PROTOBUF")) {  // it knows no nested types
                properties.put("apicurio.registry.serde.validation-enabled", "false");
            }
            made.configure(properties, key);
            @SuppressWarnings("unchecked")
            Serializer<Object> any = (Serializer<Object>) made;
            return any;
        });
        JsonNode data = part.get("data");
        Object value = switch (format) {
            case "AVRO" -> avro(part.get("schemas"), data);
            case "JSON" -> data;
            default -> message(part.get("files").asText(), part.get("message").asText(), data);
        };
        return serializer.serialize(topic, headers, value);
    }

    private static Object avro(JsonNode texts, JsonNode data) throws Exception {
        Schema.Parser parser = new Schema.Parser();
        Schema schema = null;
        for (JsonNode text : texts) {
            schema = parser.parse(text.asText());
        }
        return avro(schema, data);
    }

    private static Object avro(Schema schema, JsonNode data) throws Exception {
        switch (schema.getType()) {
            case UNION -> {
                boolean none = data.isNull();
                return avro(schema.getTypes().stream().filter(t -> t.isNullable() == none).findFirst().get(), data);
            }
            case RECORD -> {
                GenericData.Record record = new GenericData.Record(schema);
                for (Schema.Field field : schema.getFields()) {
                    record.put(field.pos(), avro(field.schema(), data.get(field.name())));
                }
                return record;
            }
            case ARRAY -> {
                List<Object> items = new ArrayList<>();
                for (JsonNode item : data) {
                    items.add(avro(schema.getElementType(), item));
                }
                return items;
            }
            case MAP -> {
                Map<String, Object> entries = new HashMap<>();
                for (Map.Entry<String, JsonNode> entry : data.properties()) {
                    entries.put(entry.getKey(), avro(schema.getValueType(), entry.getValue()));
                }
                return entries;
            }
            case ENUM -> {
                return new GenericData.EnumSymbol(schema, data.asText());
            }
            case BYTES -> {
                return ByteBuffer.wrap(Base64.getDecoder().decode(data.asText()));
            }
            default -> {
                return JSON.convertValue(data, Object.class);
            }
        }
    }

    private static Message message(String files, String name, JsonNode data) throws Exception {
        Map<String, FileDescriptor> built = new HashMap<>();
        Descriptor found = null;
        for (FileDescriptorProto file : FileDescriptorSet.parseFrom(Base64.getDecoder().decode(files)).getFileList()) {
            FileDescriptor[] needs = file.getDependencyList().stream().map(built::get).toArray(FileDescriptor[]::new);
            FileDescriptor descriptor = FileDescriptor.buildFrom(file, needs);
            built.put(file.getName(), descriptor);
            for (Descriptor type : descriptor.getMessageTypes()) {
                found = name.equals(type.getFullName()) ? type : found;
                for (Descriptor nested : type.getNestedTypes()) {
                    found = name.equals(nested.getFullName()) ? nested : found;
                }
            }
        }
        DynamicMessage.Builder builder = DynamicMessage.newBuilder(found);
        JsonFormat.parser().merge(data.toString(), builder);
        return builder.build();
    }
}
