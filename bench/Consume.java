import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads a whole topic with the Java consumer, assigned to all partitions; prints one line of JSON.
 *
 * <p>Arguments: BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE SKIP, where SKIP is the first offset read. Fails when a record is missing, doubled or of another size.
 */
public final class Consume {
  private static final Duration PATIENCE = Duration.ofSeconds(60);

  public static void main(String[] arguments) {
    String topic = arguments[1];
    int partitions = Integer.parseInt(arguments[2]);
    long records = Long.parseLong(arguments[3]);
    int size = Integer.parseInt(arguments[4]);
    long skip = Long.parseLong(arguments[5]);
    Properties config = new Properties();
    config.put("bootstrap.servers", arguments[0]);
    config.put("enable.auto.commit", "false");
    config.put("auto.offset.reset", "none");
    List<TopicPartition> all = new ArrayList<>();
    for (int p = 0; p < partitions; p++) all.add(new TopicPartition(topic, p));
    long[] next = new long[partitions];
    Arrays.fill(next, skip);
    ByteArrayDeserializer bytes = new ByteArrayDeserializer();
    try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config, bytes, bytes)) {
      consumer.assign(all);
      consumer.endOffsets(all); // connects and learns the topic, so that neither shows in the figures
      for (TopicPartition each : all) consumer.seek(each, skip);
      long count = 0;
      long started = System.nanoTime();
      long progress = started;
      while (count < records) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
          if (record.offset() != next[record.partition()]++ || record.value().length != size)
            throw new IllegalStateException("partition " + record.partition() + ": unexpected " + record);
          count++;
          progress = System.nanoTime();
        }
        if (System.nanoTime() - progress > PATIENCE.toNanos())
          throw new IllegalStateException("only " + count + " of " + records + " records came");
      }
      double seconds = (System.nanoTime() - started) / 1e9;
      System.out.printf("{\"seconds\": %.6f, \"records\": %d, \"bytes\": %d}%n", seconds, count, count * size);
    }
  }
}
