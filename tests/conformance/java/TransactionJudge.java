import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.Supplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The commands of the Java judge about transactions: producers that live between commands, and their admin side. */
final class TransactionJudge {
    private final Supplier<Properties> common;
    private final Admin admin;
    private final GroupJudge groups;
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();

    TransactionJudge(Supplier<Properties> common, Admin admin, GroupJudge groups) {
        this.common = common;
        this.admin = admin;
        this.groups = groups;
    }

    /** Whether the command was one of these. */
    boolean run(JsonNode command, ObjectNode answer) throws Exception {
        String name = command.path("producer").asText();
        var producer = producers.get(name);
        switch (command.get("do").asText()) {
            case "openProducer" -> producers.put(name, open(command));
            // At once: an open transaction stays open.
            case "closeProducer" -> producers.remove(name).close(java.time.Duration.ZERO);
            case "initTransactions" -> producer.initTransactions();
            case "beginTransaction" -> producer.beginTransaction();
            case "send" -> send(command, producer, answer);
            case "sendOffsets" -> producer.sendOffsetsToTransaction(
                    GroupMember.offsets(command.get("offsets")), metadata(command));
            case "commitTransaction" -> producer.commitTransaction();
            case "abortTransaction" -> producer.abortTransaction();
            case "latestOffset" -> latest(command, answer);
            case "listTransactions" -> list(answer);
            case "describeTransaction" -> describe(command.get("id").asText(), answer);
            case "fenceProducer" -> admin.fenceProducers(List.of(command.get("id").asText())).all().get();
            default -> {
                return false;
            }
        }
        return true;
    }

    private KafkaProducer<byte[], byte[]> open(JsonNode command) {
        Properties properties = common.get();
        command.get("config").fields().forEachRemaining(each -> properties.put(each.getKey(), each.getValue().asText()));
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static void send(JsonNode command, KafkaProducer<byte[], byte[]> producer, ObjectNode answer)
            throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode each : command.get("values")) {
            byte[] value = Base64.getDecoder().decode(each.asText());
            sent.add(producer.send(new ProducerRecord<>(
                    command.get("topic").asText(), command.get("partition").asInt(), null, value)));
        }
        producer.flush();
        ArrayNode offsets = answer.putArray("offsets");
        for (Future<RecordMetadata> each : sent) {
            offsets.add(each.get().offset());
        }
    }

    /** A living member's own, or one made up of a group, a generation and a member id. */
    private ConsumerGroupMetadata metadata(JsonNode command) throws Exception {
        JsonNode group = command.get("group");
        if (group.isTextual()) {
            return groups.metadata(group.asText());
        }
        return new ConsumerGroupMetadata(
                group.get(0).asText(), group.get(1).asInt(), group.get(2).asText(), java.util.Optional.empty());
    }

    private void latest(JsonNode command, ObjectNode answer) throws Exception {
        var place = new TopicPartition(command.get("topic").asText(), command.get("partition").asInt());
        var isolation = IsolationLevel.valueOf(command.get("isolation").asText().toUpperCase());
        var found = admin.listOffsets(Map.of(place, OffsetSpec.latest()), new ListOffsetsOptions(isolation));
        answer.put("offset", found.partitionResult(place).get().offset());
    }

    private void list(ObjectNode answer) throws Exception {
        ObjectNode found = answer.putObject("transactions");
        for (TransactionListing each : admin.listTransactions().all().get()) {
            found.putArray(each.transactionalId()).add(each.producerId()).add(each.state().toString());
        }
    }

    private void describe(String id, ObjectNode answer) throws ExecutionException, InterruptedException {
        TransactionDescription found = admin.describeTransactions(List.of(id)).description(id).get();
        answer.put("state", found.state().toString()).put("producer", found.producerId());
        answer.put("epoch", found.producerEpoch()).put("timeout", found.transactionTimeoutMs());
        answer.put("started", found.transactionStartTimeMs().orElse(-1)).put("coordinator", found.coordinatorId());
        GroupMember.add(found.topicPartitions(), answer.putArray("places"));
    }
}
