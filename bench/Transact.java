import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Commits transactions one after the other with the Java producer; prints one line of JSON.
 *
 * <p>Arguments: BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE WARM_MS TIMED_MS NAME=VALUE..., where RECORDS are those of one
 * transaction. What commits in the first WARM_MS is not timed, but counted in `all`.
 */
public final class Transact {
  public static void main(String[] arguments) {
    String topic = arguments[1];
    int partitions = Integer.parseInt(arguments[2]);
    int records = Integer.parseInt(arguments[3]);
    byte[] value = new byte[Integer.parseInt(arguments[4])];
    new java.util.Random(1).nextBytes(value);
    long warm = Long.parseLong(arguments[5]) * 1_000_000;
    long timed = Long.parseLong(arguments[6]) * 1_000_000;
    Properties config = new Properties();
    config.put("bootstrap.servers", arguments[0]);
    config.put("transactional.id", "bench-" + topic);
    for (int i = 7; i < arguments.length; i++) {
      String[] pair = arguments[i].split("=", 2);
      config.put(pair[0], pair[1]);
    }
    ByteArraySerializer bytes = new ByteArraySerializer();
    try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config, bytes, bytes)) {
      producer.initTransactions();
      long started = System.nanoTime();
      long all = 0;
      while (System.nanoTime() - started < warm) {
        commit(producer, topic, partitions, records, value);
        all++;
      }
      long begun = System.nanoTime();
      long count = 0;
      while (System.nanoTime() - begun < timed) {
        commit(producer, topic, partitions, records, value);
        count++;
      }
      double seconds = (System.nanoTime() - begun) / 1e9;
      System.out.printf("{\"seconds\": %.6f, \"transactions\": %d, \"all\": %d}%n", seconds, count, all + count);
    }
  }

  /** A record that fails makes the commit fail, and that ends the program. */
  private static void commit(
      KafkaProducer<byte[], byte[]> producer, String topic, int partitions, int records, byte[] value) {
    producer.beginTransaction();
    for (int i = 0; i < records; i++) producer.send(new ProducerRecord<>(topic, i % partitions, null, value));
    // The sender looks for unsent records first and for a commit to send afterwards; records and commit that both come
    // in between are sent in the wrong order. Seen with kafka-clients 4.3.1 on busy cores.
    producer.flush();
    producer.commitTransaction();
  }
}
