import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Consumers of one group, each polled by a thread of its own, that say in lines of JSON what happens to them.
 *
 * <p>Arguments: BOOTSTRAP TOPIC COUNT NAME=VALUE..., the latter being settings of the consumers. Every line `join` on
 * standard input adds a member; its end closes all of them. Lines out are changes of what a member owns, and in the end
 * when records of each partition came. Times are nanoseconds of the monotonic clock.
 */
public final class Members {
  private static final Duration POLL = Duration.ofMillis(100);

  private static final class Member implements ConsumerRebalanceListener, Runnable {
    private final int number;
    private final String topic;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final TreeMap<Integer, List<Long>> arrivals = new TreeMap<>();
    private final Thread thread = new Thread(this);

    Member(int number, String topic, Properties config) {
      this.number = number;
      this.topic = topic;
      ByteArrayDeserializer bytes = new ByteArrayDeserializer();
      consumer = new KafkaConsumer<>(config, bytes, bytes);
    }

    @Override
    public void run() {
      consumer.subscribe(List.of(topic), this);
      say("joins", List.of());
      try {
        while (true) {
          var polled = consumer.poll(POLL);
          long now = System.nanoTime();
          for (TopicPartition each : polled.partitions())
            arrivals.computeIfAbsent(each.partition(), key -> new ArrayList<>()).add(now);
        }
      } catch (WakeupException told) {
        consumer.close();
      } catch (RuntimeException failure) {
        failure.printStackTrace();
        Runtime.getRuntime().halt(1);
      }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> places) {
      say("assigned", places);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> places) {
      say("revoked", places);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> places) {
      say("lost", places);
    }

    private void say(String kind, Collection<TopicPartition> places) {
      List<Integer> partitions = places.stream().map(TopicPartition::partition).sorted().collect(Collectors.toList());
      print("\"kind\": \"%s\", \"at\": %d, \"partitions\": %s", kind, System.nanoTime(), partitions);
    }

    void sayArrivals() {
      arrivals.forEach((partition, times) ->
          print("\"kind\": \"arrivals\", \"partition\": %d, \"times\": %s", partition, times));
    }

    private void print(String form, Object... values) {
      synchronized (System.out) {
        System.out.printf("{\"member\": %d, " + form + "}%n", join(number, values));
        System.out.flush();
      }
    }

    private static Object[] join(Object first, Object[] rest) {
      List<Object> all = new ArrayList<>(List.of(first));
      all.addAll(List.of(rest));
      return all.toArray();
    }
  }

  public static void main(String[] arguments) throws Exception {
    Properties config = new Properties();
    config.put("bootstrap.servers", arguments[0]);
    for (int i = 3; i < arguments.length; i++) {
      String[] pair = arguments[i].split("=", 2);
      config.put(pair[0], pair[1]);
    }
    List<Member> members = new ArrayList<>();
    for (int i = 0; i < Integer.parseInt(arguments[2]); i++) add(members, arguments[1], config);
    var orders = new BufferedReader(new InputStreamReader(System.in));
    while (orders.readLine() != null) add(members, arguments[1], config);
    for (Member each : members) each.consumer.wakeup();
    for (Member each : members) each.thread.join();
    for (Member each : members) each.sayArrivals();
  }

  private static void add(List<Member> members, String topic, Properties config) {
    Member member = new Member(members.size(), topic, config);
    members.add(member);
    member.thread.start();
  }
}
