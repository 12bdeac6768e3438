import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Runs one command per line of JSON on standard input with the Java clients; answers one line each. */
public final class Judge {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration DEADLINE = Duration.ofSeconds(20);

    private final String bootstrap;
    private final Admin admin;
    private final AdminJudge adminJudge;
    private final GroupJudge groupJudge;
    private final ShareJudge shareJudge;
    private final TransactionJudge transactionJudge;
    // One consumer per reset policy for the whole run: opening and closing one costs more than most reads.
    private final Map<String, KafkaConsumer<byte[], byte[]>> consumers = new HashMap<>();

    private Judge(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(common());
        this.adminJudge = new AdminJudge(admin);
        this.groupJudge = new GroupJudge(this::common, admin);
        this.shareJudge = new ShareJudge(this::common);
        this.transactionJudge = new TransactionJudge(this::common, admin, groupJudge);
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // a library that prints must not break the line protocol
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Judge judge = new Judge(args[0]);
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                judge.run(JSON.readTree(line), answer);
            } catch (Exception failure) {
                Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
                // Consumers throw their own subclass, which the error table does not know.
                Errors error = cause instanceof OffsetOutOfRangeException
                        ? Errors.OFFSET_OUT_OF_RANGE
                        : Errors.forException(cause);
                answer.removeAll().put("error", (int) error.code()).put("message", cause.toString());
            }
            answers.println(JSON.writeValueAsString(answer));
        }
        for (var each : judge.consumers.values()) {
            each.close(CloseOptions.timeout(Duration.ofSeconds(1)));
        }
        judge.admin.close(Duration.ofSeconds(1));
    }

    private Properties common() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        return properties;
    }

    private void run(JsonNode command, ObjectNode answer) throws Exception {
        String topic = command.path("topic").asText();
        TopicPartition place = new TopicPartition(topic, command.path("partition").asInt());
        switch (command.get("do").asText()) {
            case "produce" -> produce(command, place, answer);
            case "read" -> read(command, place, answer);
            case "offset" -> offset(command, place, answer);
            case "create" -> create(command, topic);
            case "delete" -> admin.deleteTopics(List.of(topic)).all().get();
            case "topics" -> topics(answer);
            case "tool" -> new ToolJudge().run(command, answer);
            default -> {
                if (!groupJudge.run(command, answer)
                        && !shareJudge.run(command, answer)
                        && !transactionJudge.run(command, answer)) {
                    adminJudge.run(command, answer);
                }
            }
        }
    }

    private void produce(JsonNode command, TopicPartition place, ObjectNode answer) throws Exception {
        Properties properties = common();
        command.get("config").fields().forEachRemaining(each -> properties.put(each.getKey(), each.getValue().asText()));
        Integer partition = command.get("partition").isNull() ? null : place.partition(); // null: the client chooses
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer =
                new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode each : command.get("records")) {
                Long timestamp = each.get("t").isNull() ? null : each.get("t").asLong();
                var record = new ProducerRecord<>(
                        place.topic(), partition, timestamp, bytes(each.get("k")), bytes(each.get("v")));
                for (JsonNode header : each.get("h")) {
                    record.headers().add(header.get(0).asText(), bytes(header.get(1)));
                }
                sent.add(producer.send(record));
            }
            producer.flush();
            ArrayNode offsets = answer.putArray("offsets");
            ArrayNode partitions = answer.putArray("partitions");
            for (Future<RecordMetadata> each : sent) {
                offsets.add(each.get().offset());
                partitions.add(each.get().partition());
            }
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer(String reset) {
        return consumers.computeIfAbsent(reset, this::open);
    }

    private KafkaConsumer<byte[], byte[]> open(String reset) {
        Properties properties = common();
        properties.put("auto.offset.reset", reset);
        properties.put("enable.auto.commit", "false");
        properties.put("allow.auto.create.topics", "false");
        properties.put("default.api.timeout.ms", String.valueOf(DEADLINE.toMillis()));
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private void read(JsonNode command, TopicPartition place, ObjectNode answer) throws Exception {
        int count = command.get("count").asInt();
        ArrayNode records = answer.putArray("records");
        long deadline = System.nanoTime() + DEADLINE.toNanos();
        var consumer = consumer(command.get("reset").asText());
        try {
            consumer.assign(List.of(place));
            consumer.seek(place, command.get("offset").asLong());
            while (records.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(200)).records(place)) {
                    if (records.size() < count) {
                        describe(each, records.addObject());
                    }
                }
            }
        } finally {
            consumer.assign(List.of());
        }
    }

    private static void describe(ConsumerRecord<byte[], byte[]> record, ObjectNode into) {
        into.put("o", record.offset()).put("t", record.timestamp()).put("y", record.timestampType().id);
        into.put("k", text(record.key())).put("v", text(record.value()));
        ArrayNode headers = into.putArray("h");
        for (Header each : record.headers()) {
            headers.addArray().add(each.key()).add(text(each.value()));
        }
    }

    private void offset(JsonNode command, TopicPartition place, ObjectNode answer) throws Exception {
        String at = command.get("at").asText();
        if (at.equals("max")) {
            ListOffsetsResult.ListOffsetsResultInfo found =
                    admin.listOffsets(Map.of(place, OffsetSpec.maxTimestamp())).partitionResult(place).get();
            answer.put("offset", found.offset()).put("timestamp", found.timestamp());
            return;
        }
        var consumer = consumer("none");
        switch (at) {
            case "earliest" -> answer.put("offset", consumer.beginningOffsets(List.of(place)).get(place));
            case "latest" -> answer.put("offset", consumer.endOffsets(List.of(place)).get(place));
            default -> {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(place, Long.parseLong(at))).get(place);
                answer.put("offset", found == null ? -1 : found.offset());
            }
        }
    }

    private void create(JsonNode command, String topic) throws Exception {
        Map<String, String> config = new HashMap<>();
        command.get("config").fields().forEachRemaining(each -> config.put(each.getKey(), each.getValue().asText()));
        NewTopic wanted = new NewTopic(topic, command.get("partitions").asInt(), (short) 1).configs(config);
        admin.createTopics(List.of(wanted)).all().get();
    }

    private void topics(ObjectNode answer) throws Exception {
        ObjectNode counts = answer.putObject("topics");
        for (String name : admin.listTopics().names().get()) {
            // Another case may delete a topic between the two questions.
            try {
                TopicDescription found = admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
                counts.put(name, found.partitions().size());
            } catch (ExecutionException gone) {
                if (Errors.forException(gone.getCause()) != Errors.UNKNOWN_TOPIC_OR_PARTITION) {
                    throw gone;
                }
            }
        }
    }

    private static byte[] bytes(JsonNode node) {
        return node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
