import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TopicListing;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.config.ConfigResource;

/** The admin commands of the Java judge beyond making and deleting topics. */
final class AdminJudge {
    private final Admin admin;

    AdminJudge(Admin admin) {
        this.admin = admin;
    }

    void run(JsonNode command, ObjectNode answer) throws Exception {
        switch (command.get("do").asText()) {
            case "createPartitions" -> createPartitions(command);
            case "deleteRecords" -> deleteRecords(command, answer);
            case "describeConfigs" -> describeConfigs(command, answer);
            case "alterConfigs" -> alterConfigs(command);
            case "listConfigResources" -> listConfigResources(command, answer);
            case "describeCluster" -> describeCluster(answer);
            case "describeTopics" -> describeTopics(command, answer);
            case "listTopics" -> listTopics(command, answer);
            case "describeLogDirs" -> describeLogDirs(command, answer);
            case "describeProducers" -> describeProducers(command, answer);
            case "describeFeatures" -> describeFeatures(answer);
            default -> throw new IllegalArgumentException(command.get("do").asText());
        }
    }

    private void createPartitions(JsonNode command) throws Exception {
        NewPartitions wanted = NewPartitions.increaseTo(command.get("total").asInt());
        var options = new CreatePartitionsOptions().validateOnly(command.get("validateOnly").asBoolean());
        admin.createPartitions(Map.of(command.get("topic").asText(), wanted), options).all().get();
    }

    private void deleteRecords(JsonNode command, ObjectNode answer) throws Exception {
        Map<TopicPartition, RecordsToDelete> before = new HashMap<>();
        for (JsonNode each : command.get("before")) {
            before.put(
                    new TopicPartition(command.get("topic").asText(), each.get(0).asInt()),
                    RecordsToDelete.beforeOffset(each.get(1).asLong()));
        }
        ArrayNode low = answer.putArray("low");
        for (var each : admin.deleteRecords(before).lowWatermarks().entrySet()) {
            low.addArray().add(each.getKey().partition()).add(each.getValue().get().lowWatermark());
        }
    }

    private static ConfigResource resource(JsonNode command) {
        return new ConfigResource(
                ConfigResource.Type.forId((byte) command.get("type").asInt()), command.get("name").asText());
    }

    private void describeConfigs(JsonNode command, ObjectNode answer) throws Exception {
        ConfigResource resource = resource(command);
        boolean details = command.get("details").asBoolean();
        var options = new DescribeConfigsOptions().includeSynonyms(details).includeDocumentation(details);
        ObjectNode entries = answer.putObject("entries");
        for (ConfigEntry each : admin.describeConfigs(List.of(resource), options).all().get().get(resource).entries()) {
            ObjectNode entry = entries.putObject(each.name());
            entry.put("value", each.value()).put("source", each.source().name()).put("default", each.isDefault());
            entry.put("sensitive", each.isSensitive()).put("readOnly", each.isReadOnly());
            entry.put("type", each.type().name()).put("documentation", each.documentation());
            ArrayNode synonyms = entry.putArray("synonyms");
            for (var synonym : each.synonyms()) {
                synonyms.addArray().add(synonym.name()).add(synonym.value()).add(synonym.source().name());
            }
        }
    }

    private void alterConfigs(JsonNode command) throws Exception {
        Collection<AlterConfigOp> changes = new ArrayList<>();
        for (JsonNode each : command.get("changes")) {
            String value = each.get(2).isNull() ? null : each.get(2).asText();
            changes.add(new AlterConfigOp(
                    new ConfigEntry(each.get(1).asText(), value), AlterConfigOp.OpType.valueOf(each.get(0).asText())));
        }
        var options = new AlterConfigsOptions().validateOnly(command.get("validateOnly").asBoolean());
        admin.incrementalAlterConfigs(Map.of(resource(command), changes), options).all().get();
    }

    private void listConfigResources(JsonNode command, ObjectNode answer) throws Exception {
        Set<ConfigResource.Type> types = new HashSet<>();
        command.get("types").forEach(each -> types.add(ConfigResource.Type.forId((byte) each.asInt())));
        ArrayNode found = answer.putArray("resources");
        for (ConfigResource each : admin.listConfigResources(types, new ListConfigResourcesOptions()).all().get()) {
            found.addArray().add(each.type().id()).add(each.name());
        }
        // The older call over the same API; it reads version 0 as the names of client metrics.
        answer.put("clientMetrics", admin.listClientMetricsResources().all().get().size());
    }

    private void describeCluster(ObjectNode answer) throws Exception {
        var found = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
        answer.put("clusterId", found.clusterId().get()).put("controller", found.controller().get().id());
        ArrayNode nodes = answer.putArray("nodes");
        for (Node each : found.nodes().get()) {
            nodes.addArray().add(each.id()).add(each.host()).add(each.port()).add(each.isFenced());
        }
        answer.set("operations", names(found.authorizedOperations().get()));
    }

    /** Null, for a broker that does not tell, reads as none. */
    private static ArrayNode names(Set<AclOperation> operations) {
        ArrayNode names = JsonNodeFactory.instance.arrayNode();
        if (operations != null) {
            operations.stream().map(AclOperation::name).sorted().forEach(names::add);
        }
        return names;
    }

    private void describeTopics(JsonNode command, ObjectNode answer) throws Exception {
        List<String> names = new ArrayList<>();
        command.get("topics").forEach(each -> names.add(each.asText()));
        var options = new DescribeTopicsOptions()
                .includeAuthorizedOperations(true)
                .partitionSizeLimitPerResponse(command.get("limit").asInt());
        ObjectNode topics = answer.putObject("topics");
        for (TopicDescription each : admin.describeTopics(names, options).allTopicNames().get().values()) {
            ObjectNode topic = topics.putObject(each.name());
            topic.put("id", each.topicId().toString()).put("internal", each.isInternal());
            topic.set("operations", names(each.authorizedOperations()));
            ArrayNode partitions = topic.putArray("partitions");
            for (TopicPartitionInfo partition : each.partitions()) {
                ObjectNode into = partitions.addObject();
                into.put("partition", partition.partition()).put("leader", partition.leader().id());
                ArrayNode replicas = into.putArray("replicas");
                partition.replicas().forEach(node -> replicas.add(node.id()));
                ArrayNode isr = into.putArray("isr");
                partition.isr().forEach(node -> isr.add(node.id()));
            }
        }
    }

    private void listTopics(JsonNode command, ObjectNode answer) throws Exception {
        var options = new ListTopicsOptions().listInternal(command.get("internal").asBoolean());
        ObjectNode topics = answer.putObject("topics");
        for (TopicListing each : admin.listTopics(options).listings().get()) {
            topics.putObject(each.name()).put("id", each.topicId().toString()).put("internal", each.isInternal());
        }
    }

    private void describeLogDirs(JsonNode command, ObjectNode answer) throws Exception {
        int broker = command.get("broker").asInt();
        ArrayNode directories = answer.putArray("directories");
        var found = admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker);
        for (Map.Entry<String, LogDirDescription> each : found.entrySet()) {
            LogDirDescription directory = each.getValue();
            ObjectNode into = directories.addObject().put("path", each.getKey());
            into.put("error", directory.error() == null ? null : directory.error().toString());
            into.put("total", directory.totalBytes().orElse(-1)).put("usable", directory.usableBytes().orElse(-1));
            into.put("cordoned", directory.isCordoned());
            ArrayNode replicas = into.putArray("replicas");
            directory.replicaInfos().forEach((place, replica) -> replicas.addArray()
                    .add(place.topic())
                    .add(place.partition())
                    .add(replica.size())
                    .add(replica.offsetLag())
                    .add(replica.isFuture()));
        }
    }

    private void describeProducers(JsonNode command, ObjectNode answer) throws Exception {
        var place = new TopicPartition(command.get("topic").asText(), command.get("partition").asInt());
        ArrayNode producers = answer.putArray("producers");
        for (ProducerState each :
                admin.describeProducers(List.of(place)).partitionResult(place).get().activeProducers()) {
            ObjectNode into = producers.addObject();
            into.put("id", each.producerId()).put("epoch", each.producerEpoch());
            into.put("sequence", each.lastSequence()).put("timestamp", each.lastTimestamp());
            into.put("transaction", each.currentTransactionStartOffset().orElse(-1));
        }
    }

    private void describeFeatures(ObjectNode answer) throws Exception {
        FeatureMetadata found = admin.describeFeatures().featureMetadata().get();
        answer.put("epoch", found.finalizedFeaturesEpoch().orElse(-1L));
        ObjectNode supported = answer.putObject("supported");
        found.supportedFeatures()
                .forEach((name, range) ->
                        supported.putArray(name).add(range.minVersion()).add(range.maxVersion()));
        ObjectNode finalized = answer.putObject("finalized");
        found.finalizedFeatures().forEach((name, range) -> finalized.put(name, range.maxVersionLevel()));
    }
}
