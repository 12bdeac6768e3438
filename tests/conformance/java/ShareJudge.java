import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The commands of the Java judge about share consumers, each of which lives between commands. */
final class ShareJudge {
    private final Supplier<Properties> common;
    private final Map<String, KafkaShareConsumer<byte[], byte[]>> consumers = new HashMap<>();
    private final Map<String, ConsumerRecord<byte[], byte[]>> polled = new HashMap<>();

    ShareJudge(Supplier<Properties> common) {
        this.common = common;
    }

    /** Whether the command was one of these. */
    boolean run(JsonNode command, ObjectNode answer) {
        switch (command.get("do").asText()) {
            case "shareJoin" -> join(command);
            case "sharePoll" -> poll(command, answer);
            case "shareAcknowledge" -> consumer(command)
                    .acknowledge(
                            polled.get(name(command, command.get("partition").asInt(), command.get("offset").asLong())),
                            AcknowledgeType.forId((byte) command.get("type").asInt()));
            case "shareCommit" -> commit(command, answer);
            case "shareLeave" -> {
                consumer(command).close(Duration.ofSeconds(10));
                consumers.remove(command.get("member").asText());
            }
            default -> {
                return false;
            }
        }
        return true;
    }

    private KafkaShareConsumer<byte[], byte[]> consumer(JsonNode command) {
        return consumers.get(command.get("member").asText());
    }

    private static String name(JsonNode command, int partition, long offset) {
        return command.get("member").asText() + " " + partition + " " + offset;
    }

    private void join(JsonNode command) {
        Properties properties = common.get();
        command.get("config").fields().forEachRemaining(each -> properties.put(each.getKey(), each.getValue().asText()));
        var consumer =
                new KafkaShareConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<String> topics = new ArrayList<>();
        command.get("topics").forEach(each -> topics.add(each.asText()));
        consumer.subscribe(topics);
        consumers.put(command.get("member").asText(), consumer);
    }

    private void poll(JsonNode command, ObjectNode answer) {
        var consumer = consumer(command);
        ArrayNode records = answer.putArray("records");
        for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(command.get("wait").asInt()))) {
            polled.put(name(command, each.partition(), each.offset()), each);
            records.addArray()
                    .add(each.partition())
                    .add(each.offset())
                    .add(Base64.getEncoder().encodeToString(each.value()))
                    .add(each.deliveryCount().orElse((short) -1));
        }
        consumer.acquisitionLockTimeoutMs().ifPresent(time -> answer.put("lock", time));
    }

    /** What became of the acknowledgements of each partition: Kafka's code. */
    private void commit(JsonNode command, ObjectNode answer) {
        ArrayNode results = answer.putArray("results");
        consumer(command).commitSync(Duration.ofSeconds(10)).forEach((place, failure) -> results.addArray()
                .add(place.partition())
                .add(failure.map(each -> (int) Errors.forException(each).code()).orElse(0)));
    }
}
