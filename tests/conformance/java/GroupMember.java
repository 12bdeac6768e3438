import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** One consumer and the thread that polls it until it leaves; what is asked of it runs between two polls. */
final class GroupMember implements ConsumerRebalanceListener {
    private record Seen(TopicPartition place, long offset, byte[] value) {}

    private record Change(String kind, Set<TopicPartition> places) {}

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Queue<Runnable> jobs = new ConcurrentLinkedQueue<>();
    private final List<Seen> received = new ArrayList<>();
    private final List<Change> changes = new ArrayList<>();
    private final Thread thread = new Thread(this::poll);
    private Set<TopicPartition> assigned = Set.of();
    private Throwable failure;
    private volatile boolean leaving;
    private volatile boolean staying;

    GroupMember(Properties properties, JsonNode command) {
        command.get("config").fields().forEachRemaining(each -> properties.put(each.getKey(), each.getValue().asText()));
        consumer = new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<TopicPartition> places = places(command.get("places"));
        String pattern = command.get("pattern").asText(null);
        if (!places.isEmpty()) {
            consumer.assign(places);
            consumer.seekToBeginning(places);
        } else if (pattern == null) {
            List<String> topics = new ArrayList<>();
            command.get("topics").forEach(each -> topics.add(each.asText()));
            consumer.subscribe(topics, this);
        } else if (properties.get("group.protocol").equals("consumer")) {
            consumer.subscribe(new SubscriptionPattern(pattern), this);
        } else {
            consumer.subscribe(java.util.regex.Pattern.compile(pattern), this);
        }
        thread.setDaemon(true);
        thread.start();
    }

    private void poll() {
        try {
            while (!leaving) {
                for (Runnable job = jobs.poll(); job != null; job = jobs.poll()) {
                    job.run();
                }
                var polled = consumer.poll(Duration.ofMillis(50));
                synchronized (this) {
                    for (ConsumerRecord<byte[], byte[]> each : polled) {
                        var place = new TopicPartition(each.topic(), each.partition());
                        received.add(new Seen(place, each.offset(), each.value()));
                    }
                    assigned = Set.copyOf(consumer.assignment());
                }
            }
        } catch (Throwable problem) {
            synchronized (this) {
                failure = problem;
            }
        } finally {
            var operation = staying ? GroupMembershipOperation.REMAIN_IN_GROUP : GroupMembershipOperation.DEFAULT;
            consumer.close(CloseOptions.timeout(Duration.ofSeconds(10)).withGroupMembershipOperation(operation));
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> places) {
        note("assigned", places);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> places) {
        note("revoked", places);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> places) {
        note("lost", places);
    }

    private synchronized void note(String kind, Collection<TopicPartition> places) {
        if (!places.isEmpty()) {
            changes.add(new Change(kind, new HashSet<>(places)));
        }
    }

    /** What it owns now, and all it was told and got after the counts given. */
    synchronized void describe(JsonNode command, ObjectNode answer) {
        answer.put("failure", failure == null ? null : failure.toString());
        add(assigned, answer.putArray("assigned"));
        ArrayNode told = answer.putArray("changes");
        for (Change each : changes.subList(command.get("changes").asInt(), changes.size())) {
            add(each.places, told.addArray().add(each.kind).addArray());
        }
        ArrayNode got = answer.putArray("received");
        for (Seen each : received.subList(command.get("received").asInt(), received.size())) {
            String value = Base64.getEncoder().encodeToString(each.value);
            got.addArray().add(each.place.topic()).add(each.place.partition()).add(each.offset).add(value);
        }
    }

    /** Run the job in the polling thread, after the poll under way. */
    <T> CompletableFuture<T> start(Callable<T> job) {
        var done = new CompletableFuture<T>();
        jobs.add(() -> {
            try {
                done.complete(job.call());
            } catch (Throwable problem) {
                done.completeExceptionally(problem);
            }
        });
        return done;
    }

    KafkaConsumer<byte[], byte[]> consumer() {
        return consumer;
    }

    /** Close it, by the protocol or, when it stays, without a word to the coordinator. */
    void leave(boolean stays) throws InterruptedException {
        staying = stays;
        leaving = true;
        thread.join();
    }

    static List<TopicPartition> places(JsonNode wanted) {
        List<TopicPartition> places = new ArrayList<>();
        wanted.forEach(each -> places.add(new TopicPartition(each.get(0).asText(), each.get(1).asInt())));
        return places;
    }

    /** Out of lists of topic, partition, offset, metadata. */
    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode wanted) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode each : wanted) {
            var place = new TopicPartition(each.get(0).asText(), each.get(1).asInt());
            offsets.put(place, new OffsetAndMetadata(each.get(2).asLong(), each.get(3).asText()));
        }
        return offsets;
    }

    static void add(Collection<TopicPartition> places, ArrayNode into) {
        places.forEach(each -> into.addArray().add(each.topic()).add(each.partition()));
    }

    static void add(Map<TopicPartition, OffsetAndMetadata> offsets, ArrayNode into) {
        offsets.forEach((place, each) -> {
            if (each != null) {
                into.addArray().add(place.topic()).add(place.partition()).add(each.offset()).add(each.metadata());
            }
        });
    }
}
