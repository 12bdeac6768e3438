/* Loads a Kafka broker through librdkafka and prints what it measured as one line of JSON.
 *
 *   load produce BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE ACKS
 *   load consume BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE
 *   load latency BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE ACKS RATE
 *
 * Each record's key is its number within its partition, and `consume` checks that every partition comes back
 * whole and in order: a figure for records that were lost or doubled is worth nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <librdkafka/rdkafka.h>

#define TIMEOUT_MS 120000
#define CONSUME_BATCH 1000

static atomic_long failed;
static const char *first_failure = "";

static void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(1);
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static long number(const char *text) {
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno || *end || value <= 0)
    die("not a positive number: %s", text);
  return value;
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *value) {
  char why[512];
  if (rd_kafka_conf_set(conf, key, value, why, sizeof why) != RD_KAFKA_CONF_OK)
    die("%s", why);
}

static rd_kafka_t *open_client(rd_kafka_type_t type, rd_kafka_conf_t *conf, const char *bootstrap) {
  char why[512];
  set(conf, "bootstrap.servers", bootstrap);
  set(conf, "socket.nagle.disable", "true");
  rd_kafka_t *client = rd_kafka_new(type, conf, why, sizeof why);
  if (!client)
    die("%s", why);
  return client;
}

/* Connects and learns the topic first, so that neither shows in the figures. */
static rd_kafka_topic_t *warm_up(rd_kafka_t *client, const char *name, long partitions) {
  rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
  const struct rd_kafka_metadata *metadata;
  rd_kafka_resp_err_t error = rd_kafka_metadata(client, 0, topic, &metadata, 30000);
  if (error)
    die("metadata: %s", rd_kafka_err2str(error));
  if (metadata->topic_cnt != 1 || metadata->topics[0].partition_cnt != partitions)
    die("topic %s does not have %ld partitions", name, partitions);
  rd_kafka_metadata_destroy(metadata);
  /* Kafka lists a new topic before it leads all of its partitions. A record refused for that is retried behind
   * later ones, and the check of the order would blame the broker. */
  int64_t deadline = now_ns() + 30 * (int64_t)1000000000;
  for (int32_t p = 0; p < partitions; p++) {
    int64_t low, high;
    while ((error = rd_kafka_query_watermark_offsets(client, name, p, &low, &high, 5000)))
      if (now_ns() > deadline)
        die("partition %" PRId32 " does not serve: %s", p, rd_kafka_err2str(error));
  }
  return topic;
}

static char *make_payload(long size) {
  char *payload = malloc((size_t)size);
  uint64_t state = 88172645463325252u; /* xorshift: bytes that do not compress */
  for (long i = 0; i < size; i++) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    payload[i] = (char)state;
  }
  return payload;
}

static void note_failure(const rd_kafka_message_t *message) {
  if (atomic_fetch_add(&failed, 1) == 0)
    first_failure = rd_kafka_err2str(message->err);
}

static void on_error_report(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
  (void)client, (void)opaque;
  if (message->err)
    note_failure(message);
}

static void finish(rd_kafka_t *client, long records) {
  if (rd_kafka_flush(client, TIMEOUT_MS) || rd_kafka_outq_len(client))
    die("records were not delivered in time");
  if (atomic_load(&failed))
    die("%ld of %ld records failed: %s", atomic_load(&failed), records, first_failure);
}

static void run_produce(const char *bootstrap, const char *name, long partitions, long records, long size,
                        const char *acks) {
  rd_kafka_conf_t *conf = rd_kafka_conf_new();
  set(conf, "acks", acks);
  set(conf, "linger.ms", "5");
  set(conf, "batch.size", "1000000");
  set(conf, "queue.buffering.max.messages", "500000");
  set(conf, "queue.buffering.max.kbytes", "262144");
  set(conf, "delivery.report.only.error", "true");
  rd_kafka_conf_set_dr_msg_cb(conf, on_error_report);
  rd_kafka_t *client = open_client(RD_KAFKA_PRODUCER, conf, bootstrap);
  rd_kafka_topic_t *topic = warm_up(client, name, partitions);
  char *payload = make_payload(size);

  int64_t started = now_ns();
  for (long i = 0; i < records; i++) {
    int64_t key = i / partitions;
    /* Flag 0: librdkafka points at the one payload instead of copying it; keys are always copied. */
    while (rd_kafka_produce(topic, (int32_t)(i % partitions), 0, payload, (size_t)size, &key, sizeof key, NULL)) {
      if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
        die("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
      rd_kafka_poll(client, 5);
    }
  }
  finish(client, records);
  double seconds = (double)(now_ns() - started) / 1e9;
  printf("{\"seconds\": %.6f, \"records\": %ld, \"bytes\": %ld}\n", seconds, records, records * size);
  rd_kafka_topic_destroy(topic);
  rd_kafka_destroy(client);
  free(payload);
}

static void run_consume(const char *bootstrap, const char *name, long partitions, long records, long size) {
  rd_kafka_conf_t *conf = rd_kafka_conf_new();
  set(conf, "group.id", "never-joined"); /* librdkafka demands one; assign never uses it */
  set(conf, "enable.auto.commit", "false");
  set(conf, "enable.auto.offset.store", "false");
  set(conf, "auto.offset.reset", "error");
  rd_kafka_t *client = open_client(RD_KAFKA_CONSUMER, conf, bootstrap);
  rd_kafka_topic_t *topic = warm_up(client, name, partitions);
  rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(client);
  rd_kafka_topic_partition_list_t *all = rd_kafka_topic_partition_list_new((int)partitions);
  for (int32_t p = 0; p < partitions; p++)
    rd_kafka_topic_partition_list_add(all, name, p)->offset = 0;
  int64_t *next = calloc((size_t)partitions, sizeof *next);
  rd_kafka_message_t *messages[CONSUME_BATCH];
  long count = 0;

  int64_t started = now_ns(), progress = started;
  rd_kafka_resp_err_t error = rd_kafka_assign(client, all);
  if (error)
    die("assign: %s", rd_kafka_err2str(error));
  while (count < records) {
    ssize_t got = rd_kafka_consume_batch_queue(queue, 100, messages, CONSUME_BATCH);
    for (ssize_t i = 0; i < got; i++) {
      rd_kafka_message_t *message = messages[i];
      if (message->err)
        die("consume: %s", rd_kafka_message_errstr(message));
      int64_t key;
      if (message->key_len != sizeof key || message->len != (size_t)size)
        die("a record of another size at offset %" PRId64, message->offset);
      memcpy(&key, message->key, sizeof key);
      if (key != next[message->partition] || message->offset != key)
        die("partition %" PRId32 ": record %" PRId64 " at offset %" PRId64 ", expected %" PRId64,
            message->partition, key, message->offset, next[message->partition]);
      next[message->partition]++;
      count++;
      rd_kafka_message_destroy(message);
    }
    if (got > 0)
      progress = now_ns();
    else if (now_ns() - progress > (int64_t)TIMEOUT_MS * 1000000)
      die("only %ld of %ld records came", count, records);
  }
  double seconds = (double)(now_ns() - started) / 1e9;
  printf("{\"seconds\": %.6f, \"records\": %ld, \"bytes\": %ld}\n", seconds, count, count * size);
  rd_kafka_topic_partition_list_destroy(all);
  rd_kafka_queue_destroy(queue);
  rd_kafka_consumer_close(client);
  rd_kafka_topic_destroy(topic);
  rd_kafka_destroy(client);
  free(next);
}

static int64_t *sent_ns, *took_ns;
static atomic_int polling = 1;

static void on_timed_report(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
  (void)client, (void)opaque;
  intptr_t i = (intptr_t)message->_private;
  if (message->err)
    note_failure(message);
  took_ns[i] = now_ns() - sent_ns[i];
}

static void *poll_reports(void *client) {
  while (atomic_load(&polling))
    rd_kafka_poll(client, 50);
  return NULL;
}

static int by_size(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static double percentile_ms(long count, double share) {
  long i = (long)(share * (double)count);
  return (double)took_ns[i < count ? i : count - 1] / 1e6;
}

static void run_latency(const char *bootstrap, const char *name, long partitions, long records, long size,
                        const char *acks, long rate) {
  rd_kafka_conf_t *conf = rd_kafka_conf_new();
  set(conf, "acks", acks);
  set(conf, "linger.ms", "0");
  rd_kafka_conf_set_dr_msg_cb(conf, on_timed_report);
  rd_kafka_t *client = open_client(RD_KAFKA_PRODUCER, conf, bootstrap);
  rd_kafka_topic_t *topic = warm_up(client, name, partitions);
  char *payload = make_payload(size);
  sent_ns = calloc((size_t)records, sizeof *sent_ns);
  took_ns = calloc((size_t)records, sizeof *took_ns);
  pthread_t poller;
  if (pthread_create(&poller, NULL, poll_reports, client))
    die("no thread");

  int64_t started = now_ns();
  for (long i = 0; i < records; i++) {
    int64_t due = started + i * (1000000000 / rate);
    struct timespec until = {due / 1000000000, due % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    /* An open loop: nothing here waits for the broker, so a slow answer delays no later record. */
    sent_ns[i] = now_ns();
    if (rd_kafka_produce(topic, (int32_t)(i % partitions), 0, payload, (size_t)size, NULL, 0, (void *)(intptr_t)i))
      die("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
  }
  double seconds = (double)(now_ns() - started) / 1e9;
  finish(client, records);
  atomic_store(&polling, 0);
  pthread_join(poller, NULL);

  long skipped = records / 10; /* the first tenth warms connections and caches */
  long count = records - skipped;
  memmove(took_ns, took_ns + skipped, (size_t)count * sizeof *took_ns);
  qsort(took_ns, (size_t)count, sizeof *took_ns, by_size);
  printf("{\"seconds\": %.6f, \"records\": %ld, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"p999_ms\": %.4f, "
         "\"max_ms\": %.4f}\n",
         seconds, records, percentile_ms(count, 0.5), percentile_ms(count, 0.99), percentile_ms(count, 0.999),
         percentile_ms(count, 1.0));
  rd_kafka_topic_destroy(topic);
  rd_kafka_destroy(client);
  free(payload), free(sent_ns), free(took_ns);
}

int main(int argc, char **argv) {
  if (argc < 2)
    die("usage: load produce|consume|latency ...");
  const char *mode = argv[1];
  if (!strcmp(mode, "produce") && argc == 8)
    run_produce(argv[2], argv[3], number(argv[4]), number(argv[5]), number(argv[6]), argv[7]);
  else if (!strcmp(mode, "consume") && argc == 7)
    run_consume(argv[2], argv[3], number(argv[4]), number(argv[5]), number(argv[6]));
  else if (!strcmp(mode, "latency") && argc == 9)
    run_latency(argv[2], argv[3], number(argv[4]), number(argv[5]), number(argv[6]), argv[7], number(argv[8]));
  else
    die("usage: load produce|consume|latency ... (see the top of load.c)");
  return 0;
}
