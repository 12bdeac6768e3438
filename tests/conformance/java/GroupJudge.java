import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.Supplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;

/** The commands of the Java judge about groups: members that live between commands, and their admin side. */
final class GroupJudge {
    private final Supplier<Properties> common;
    private final Admin admin;
    private final Map<String, GroupMember> members = new HashMap<>();
    private final Map<Integer, CompletableFuture<ObjectNode>> tickets = new HashMap<>();

    GroupJudge(Supplier<Properties> common, Admin admin) {
        this.common = common;
        this.admin = admin;
    }

    /** Whether the command was one of these. */
    boolean run(JsonNode command, ObjectNode answer) throws Exception {
        String group = command.path("group").asText();
        switch (command.get("do").asText()) {
            case "join" -> members.put(command.get("member").asText(), new GroupMember(common.get(), command));
            case "member" -> member(command).describe(command, answer);
            case "leave" -> leave(command);
            case "commit", "committed", "seek" -> start(command, answer);
            case "ticket" -> ticket(command, answer);
            case "listGroups" -> listGroups(answer);
            case "describeGroup" -> describeGroup(group, answer);
            case "deleteGroup" -> admin.deleteConsumerGroups(List.of(group)).all().get();
            case "groupOffsets" -> groupOffsets(command, group, answer);
            case "alterGroupOffsets" -> admin.alterConsumerGroupOffsets(
                            group, GroupMember.offsets(command.get("offsets")))
                    .all()
                    .get();
            case "deleteGroupOffsets" -> admin.deleteConsumerGroupOffsets(
                            group, new HashSet<>(GroupMember.places(command.get("places"))))
                    .all()
                    .get();
            case "removeMembers" -> removeMembers(command, group);
            default -> {
                return false;
            }
        }
        return true;
    }

    private GroupMember member(JsonNode command) {
        return members.get(command.get("member").asText());
    }

    /** What a transactional producer needs to commit this member's offsets. */
    ConsumerGroupMetadata metadata(String member) throws Exception {
        GroupMember found = members.get(member);
        return found.start(() -> found.consumer().groupMetadata()).get();
    }

    private void leave(JsonNode command) throws InterruptedException {
        member(command).leave(command.get("stays").asBoolean());
        members.remove(command.get("member").asText());
    }

    /** Starts what a member may take long for; the answer is fetched with the ticket. */
    private void start(JsonNode command, ObjectNode answer) {
        var consumer = member(command).consumer();
        var done = member(command).start(() -> {
            ObjectNode found = JsonNodeFactory.instance.objectNode();
            switch (command.get("do").asText()) {
                case "commit" -> {
                    if (command.get("offsets").isNull()) {
                        consumer.commitSync();
                    } else {
                        consumer.commitSync(GroupMember.offsets(command.get("offsets")));
                    }
                }
                case "seek" -> consumer.seek(
                        GroupMember.places(command.get("places")).get(0), command.get("offset").asLong());
                default -> GroupMember.add(
                        consumer.committed(new HashSet<>(GroupMember.places(command.get("places")))),
                        found.putArray("offsets"));
            }
            return found;
        });
        tickets.put(tickets.size(), done);
        answer.put("ticket", tickets.size() - 1);
    }

    private void ticket(JsonNode command, ObjectNode answer) throws Exception {
        var waiting = tickets.get(command.get("ticket").asInt());
        answer.put("done", waiting.isDone());
        if (waiting.isDone()) {
            answer.setAll(waiting.get());
        }
    }

    private void listGroups(ObjectNode answer) throws Exception {
        ObjectNode groups = answer.putObject("groups");
        for (GroupListing each : admin.listGroups().all().get()) {
            groups.putArray(each.groupId())
                    .add(each.groupState().map(Object::toString).orElse(null))
                    .add(each.type().map(Enum::name).orElse(null))
                    .add(each.protocol());
        }
    }

    private void describeGroup(String group, ObjectNode answer) throws Exception {
        ConsumerGroupDescription found =
                admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        answer.put("state", found.groupState().toString()).put("assignor", found.partitionAssignor());
        answer.put("kind", found.type().name()).put("coordinator", found.coordinator().id());
        answer.put("epoch", found.groupEpoch().orElse(-1));
        answer.put("targetEpoch", found.targetAssignmentEpoch().orElse(-1));
        ArrayNode described = answer.putArray("members");
        for (MemberDescription each : found.members()) {
            ObjectNode into = described.addObject();
            into.put("id", each.consumerId()).put("client", each.clientId()).put("host", each.host());
            into.put("instance", each.groupInstanceId().orElse(null));
            into.put("epoch", each.memberEpoch().orElse(-1));
            GroupMember.add(each.assignment().topicPartitions(), into.putArray("places"));
        }
    }

    private void groupOffsets(JsonNode command, String group, ObjectNode answer) throws Exception {
        var spec = new ListConsumerGroupOffsetsSpec();
        if (!command.get("places").isEmpty()) {
            spec.topicPartitions(GroupMember.places(command.get("places")));
        }
        var found = admin.listConsumerGroupOffsets(Map.of(group, spec)).partitionsToOffsetAndMetadata(group);
        GroupMember.add(found.get(), answer.putArray("offsets"));
    }

    private void removeMembers(JsonNode command, String group) throws Exception {
        List<MemberToRemove> wanted = new ArrayList<>();
        command.get("instances").forEach(each -> wanted.add(new MemberToRemove(each.asText())));
        var options = wanted.isEmpty()
                ? new RemoveMembersFromConsumerGroupOptions()
                : new RemoveMembersFromConsumerGroupOptions(wanted);
        options.reason("asked to");
        try {
            admin.removeMembersFromConsumerGroup(group, options).all().get();
        } catch (ExecutionException failure) {
            // The error of a single member comes wrapped once more.
            Throwable cause = failure.getCause();
            throw new ExecutionException(cause.getCause() == null ? cause : cause.getCause());
        }
    }
}
