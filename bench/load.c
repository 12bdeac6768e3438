/* Loads a Kafka broker through librdkafka and prints what it measured as one line of JSON.
 *
 *   load produce BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE ACKS [keyed] [time=MS] [codec=NAME] [text]
 *   load consume BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE [keyed] [skip=N]
 *   load latency BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE ACKS RATE [samples=FILE]
 *   load passage BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE ACKS RATE
 *
 * `consume` checks that every record comes back once and every partition in order: a figure for records that were
 * lost or doubled is worth nothing. Records go round the partitions, with their number within the partition as key;
 * with `keyed` the key is the record's number and the client's partitioner chooses. `time` is the records' timestamp.
 * `codec` is librdkafka's compression.type, at level 1. Values are one block of random bytes, which no codec makes
 * smaller; with `text` they are many different JSON objects, which shrink to about a quarter. All sizes count before
 * compression.
 * `skip` begins at an offset, behind what another produce put into each partition. A consumer that has enough queued
 * asks again after a millisecond; librdkafka's own second would have every broker stand still for as long.
 * `latency` is from the call of produce to the delivery report, `passage` from the call to the consumer's poll in the
 * same process; both take an open loop of RATE records a second. `samples` gets two int64 a record: sent, took (ns);
 * SIGTERM ends `latency` early.
 * LOAD_PROPERTIES in the environment is a file of more of librdkafka's settings, one NAME=VALUE a line.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
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
#define TEXT_BYTES (16 << 20) /* in all values: more than the batches of six partitions, or batches would repeat */

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

/* Which topic is loaded, and with what. */
struct place {
  const char *bootstrap, *topic;
  long partitions, records, size;
};

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

static void set_more(rd_kafka_conf_t *conf) {
  const char *path = getenv("LOAD_PROPERTIES");
  if (!path)
    return;
  char line[1024];
  FILE *file = fopen(path, "r");
  if (!file)
    die("%s: %s", path, strerror(errno));
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    char *value = strchr(line, '=');
    if (!value)
      die("%s: no NAME=VALUE in: %s", path, line);
    *value = 0;
    set(conf, line, value + 1);
  }
  fclose(file);
}

static rd_kafka_t *open_client(rd_kafka_type_t type, rd_kafka_conf_t *conf, const char *bootstrap) {
  char why[512];
  set(conf, "bootstrap.servers", bootstrap);
  set(conf, "socket.nagle.disable", "true");
  set_more(conf);
  rd_kafka_t *client = rd_kafka_new(type, conf, why, sizeof why);
  if (!client)
    die("%s", why);
  return client;
}

/* Connects and learns the topic first, so that neither shows in the figures. */
static rd_kafka_topic_t *warm_up(rd_kafka_t *client, const struct place *at) {
  rd_kafka_topic_t *topic = rd_kafka_topic_new(client, at->topic, NULL);
  const struct rd_kafka_metadata *metadata;
  rd_kafka_resp_err_t error = rd_kafka_metadata(client, 0, topic, &metadata, 30000);
  if (error)
    die("metadata: %s", rd_kafka_err2str(error));
  if (metadata->topic_cnt != 1 || metadata->topics[0].partition_cnt != at->partitions)
    die("topic %s does not have %ld partitions", at->topic, at->partitions);
  rd_kafka_metadata_destroy(metadata);
  /* Kafka lists a new topic before it leads all of its partitions. A record refused for that is retried behind
   * later ones, and the check of the order would blame the broker. */
  int64_t deadline = now_ns() + 30 * (int64_t)1000000000;
  for (int32_t p = 0; p < at->partitions; p++) {
    int64_t low, high;
    while ((error = rd_kafka_query_watermark_offsets(client, at->topic, p, &low, &high, 5000)))
      if (now_ns() > deadline)
        die("partition %" PRId32 " does not serve: %s", p, rd_kafka_err2str(error));
  }
  return topic;
}

/* xorshift */
static uint64_t next_random(void) {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

static char *make_payload(long size) {
  char *payload = malloc((size_t)size);
  for (long i = 0; i < size; i++)
    payload[i] = (char)next_random();
  return payload;
}

/* One JSON object of exactly `size` bytes; a small one is cut off. */
static void write_text(char *value, size_t size) {
  static const char *const words[] = {
      "the",    "order",   "was",      "placed",  "from",   "customer", "item",  "shipped", "to",      "warehouse",
      "status", "pending", "delivery", "payment", "failed", "retry",    "after", "seconds", "account", "updated",
      "by",     "service", "request",  "timeout", "while",  "reading",  "page",  "session", "expired", "returned",
      "stock",  "price",   "changed",  "north",   "for",    "invoice"};
  const size_t count = sizeof words / sizeof *words;
  uint64_t id = next_random(), some = next_random();
  char text[160];
  size_t at = (size_t)snprintf(text, sizeof text,
                               "{\"id\":\"%016" PRIx64 "\",\"user\":\"user-%u\",\"amount\":%u.%02u,\"note\":\"", id,
                               (unsigned)(some % 50000), (unsigned)(some >> 20) % 1000, (unsigned)(some >> 40) % 100);
  memcpy(value, text, at < size ? at : size);
  while (at < size) {
    uint64_t draw = next_random(); /* the smaller of two: words differ in how common they are */
    size_t one = draw % count, other = (draw >> 32) % count;
    at += (size_t)snprintf(text, sizeof text, "%s ", words[one < other ? one : other]);
    size_t length = strlen(text), begin = at - length;
    memcpy(value + begin, text, at < size ? length : size - begin);
  }
  if (size >= 2)
    memcpy(value + size - 2, "\"}", 2);
}

/* What is sent, in turn: one value, or many. */
struct values {
  char *bytes;
  long count;
};

static struct values make_values(long size, int text) {
  if (!text)
    return (struct values){make_payload(size), 1};
  struct values made = {NULL, TEXT_BYTES / size + 1};
  made.bytes = malloc((size_t)(made.count * size));
  for (long i = 0; i < made.count; i++)
    write_text(made.bytes + i * size, (size_t)size);
  return made;
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

static void print_rate(int64_t started, long records, long size) {
  double seconds = (double)(now_ns() - started) / 1e9;
  printf("{\"seconds\": %.6f, \"records\": %ld, \"bytes\": %ld}\n", seconds, records, records * size);
}

/* No flag: librdkafka points at the payload instead of copying it; keys are always copied. */
static rd_kafka_resp_err_t enqueue(rd_kafka_t *client, rd_kafka_topic_t *topic, int32_t partition, char *payload,
                                   size_t size, int64_t key, int64_t time_ms) {
  if (time_ms)
    return rd_kafka_producev(client, RD_KAFKA_V_RKT(topic), RD_KAFKA_V_PARTITION(partition),
                             RD_KAFKA_V_VALUE(payload, size), RD_KAFKA_V_KEY(&key, sizeof key),
                             RD_KAFKA_V_TIMESTAMP(time_ms), RD_KAFKA_V_END);
  return rd_kafka_produce(topic, partition, 0, payload, size, &key, sizeof key, NULL) ? rd_kafka_last_error() : 0;
}

struct manner {
  const char *acks, *codec;
  int keyed, text;
  int64_t time_ms;
};

static void run_produce(const struct place *at, struct manner how) {
  rd_kafka_conf_t *conf = rd_kafka_conf_new();
  set(conf, "acks", how.acks);
  if (how.codec) {
    set(conf, "compression.type", how.codec);
    set(conf, "compression.level", "1"); /* gzip's own 6 takes the client so long that the broker idles */
  }
  set(conf, "linger.ms", "5");
  set(conf, "batch.size", "1000000");
  set(conf, "queue.buffering.max.messages", "500000");
  set(conf, "queue.buffering.max.kbytes", "262144");
  set(conf, "delivery.report.only.error", "true");
  rd_kafka_conf_set_dr_msg_cb(conf, on_error_report);
  rd_kafka_t *client = open_client(RD_KAFKA_PRODUCER, conf, at->bootstrap);
  rd_kafka_topic_t *topic = warm_up(client, at);
  struct values values = make_values(at->size, how.text);

  int64_t started = now_ns();
  for (long i = 0; i < at->records; i++) {
    int64_t key = how.keyed ? i : i / at->partitions;
    int32_t partition = how.keyed ? RD_KAFKA_PARTITION_UA : (int32_t)(i % at->partitions);
    char *payload = values.bytes + i % values.count * at->size;
    rd_kafka_resp_err_t error;
    while ((error = enqueue(client, topic, partition, payload, (size_t)at->size, key, how.time_ms))) {
      if (error != RD_KAFKA_RESP_ERR__QUEUE_FULL)
        die("produce: %s", rd_kafka_err2str(error));
      rd_kafka_poll(client, 5);
    }
  }
  finish(client, at->records);
  print_rate(started, at->records, at->size);
  rd_kafka_topic_destroy(topic);
  rd_kafka_destroy(client);
  free(values.bytes);
}

static rd_kafka_t *open_consumer(const struct place *at) {
  rd_kafka_conf_t *conf = rd_kafka_conf_new();
  set(conf, "group.id", "never-joined"); /* librdkafka demands one; assign never uses it */
  set(conf, "enable.auto.commit", "false");
  set(conf, "enable.auto.offset.store", "false");
  set(conf, "auto.offset.reset", "error");
  set(conf, "fetch.queue.backoff.ms", "1");
  return open_client(RD_KAFKA_CONSUMER, conf, at->bootstrap);
}

static void assign_all(rd_kafka_t *client, const struct place *at, int64_t from) {
  rd_kafka_topic_partition_list_t *all = rd_kafka_topic_partition_list_new((int)at->partitions);
  for (int32_t p = 0; p < at->partitions; p++)
    rd_kafka_topic_partition_list_add(all, at->topic, p)->offset = from;
  rd_kafka_resp_err_t error = rd_kafka_assign(client, all);
  if (error)
    die("assign: %s", rd_kafka_err2str(error));
  rd_kafka_topic_partition_list_destroy(all);
}

/* What a consumer has seen: the next offset and the least next key of each partition, and every keyed record. */
struct ledger {
  int64_t *next, *least;
  unsigned char *seen; /* by record number; NULL when not keyed */
};

static void check(struct ledger *ledger, const struct place *at, const rd_kafka_message_t *message) {
  int32_t p = message->partition;
  int64_t key;
  if (message->err)
    die("consume: %s", rd_kafka_message_errstr(message));
  if (message->key_len != sizeof key || message->len != (size_t)at->size)
    die("a record of another size at offset %" PRId64, message->offset);
  memcpy(&key, message->key, sizeof key);
  int ordered = key == ledger->least[p];
  if (ledger->seen)
    ordered = key >= ledger->least[p] && key < at->records && !ledger->seen[key];
  if (message->offset != ledger->next[p] || !ordered)
    die("partition %" PRId32 ": record %" PRId64 " at %" PRId64 ", expected record %" PRId64 " at %" PRId64, p, key,
        message->offset, ledger->least[p], ledger->next[p]);
  if (ledger->seen)
    ledger->seen[key] = 1;
  ledger->next[p]++;
  ledger->least[p] = key + 1;
}

static void run_consume(const struct place *at, int keyed, int64_t from) {
  rd_kafka_t *client = open_consumer(at);
  rd_kafka_topic_t *topic = warm_up(client, at);
  rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(client);
  size_t width = (size_t)at->partitions;
  struct ledger ledger = {calloc(width, sizeof(int64_t)), calloc(width, sizeof(int64_t)),
                          keyed ? calloc((size_t)at->records, 1) : NULL};
  rd_kafka_message_t *messages[CONSUME_BATCH];
  long count = 0;
  for (long p = 0; p < at->partitions; p++)
    ledger.next[p] = from;

  int64_t started = now_ns(), progress = started;
  assign_all(client, at, from);
  while (count < at->records) {
    ssize_t got = rd_kafka_consume_batch_queue(queue, 100, messages, CONSUME_BATCH);
    for (ssize_t i = 0; i < got; i++) {
      check(&ledger, at, messages[i]);
      rd_kafka_message_destroy(messages[i]);
    }
    count += got > 0 ? got : 0;
    if (got > 0)
      progress = now_ns();
    else if (now_ns() - progress > (int64_t)TIMEOUT_MS * 1000000)
      die("only %ld of %ld records came", count, at->records);
  }
  print_rate(started, count, at->size);
  rd_kafka_queue_destroy(queue);
  rd_kafka_consumer_close(client);
  rd_kafka_topic_destroy(topic);
  rd_kafka_destroy(client);
  free(ledger.next), free(ledger.least), free(ledger.seen);
}

static int64_t *sent_ns, *took_ns;
static atomic_int polling = 1;
static volatile sig_atomic_t told_to_stop;

static void on_stop(int number) {
  (void)number;
  told_to_stop = 1;
}

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

static void make_times(long records) {
  sent_ns = calloc((size_t)records, sizeof *sent_ns);
  took_ns = calloc((size_t)records, sizeof *took_ns);
}

static void save_times(const char *path, long records) {
  FILE *file = fopen(path, "wb");
  if (!file)
    die("%s: %s", path, strerror(errno));
  for (long i = 0; i < records; i++) {
    int64_t pair[2] = {sent_ns[i], took_ns[i]};
    if (fwrite(pair, sizeof pair, 1, file) != 1)
      die("%s: %s", path, strerror(errno));
  }
  if (fclose(file))
    die("%s: %s", path, strerror(errno));
}

static void print_times(long records) {
  long skipped = records / 10; /* the first tenth warms connections and caches */
  long count = records - skipped;
  memmove(took_ns, took_ns + skipped, (size_t)count * sizeof *took_ns);
  qsort(took_ns, (size_t)count, sizeof *took_ns, by_size);
  printf("{\"records\": %ld, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"p999_ms\": %.4f, \"max_ms\": %.4f}\n", records,
         percentile_ms(count, 0.5), percentile_ms(count, 0.99), percentile_ms(count, 0.999),
         percentile_ms(count, 1.0));
  free(sent_ns), free(took_ns);
}

static rd_kafka_t *open_prompt_producer(const struct place *at, const char *acks,
                                        void (*report)(rd_kafka_t *, const rd_kafka_message_t *, void *)) {
  rd_kafka_conf_t *conf = rd_kafka_conf_new();
  set(conf, "acks", acks);
  set(conf, "linger.ms", "0");
  rd_kafka_conf_set_dr_msg_cb(conf, report);
  return open_client(RD_KAFKA_PRODUCER, conf, at->bootstrap);
}

/* An open loop: nothing here waits for the broker, so a slow answer delays no later record. Each value carries the
 * record's number. Returns how many were sent: all, or fewer after SIGTERM. */
static long send_steadily(rd_kafka_topic_t *topic, const struct place *at, long rate) {
  char *payload = make_payload(at->size);
  int64_t started = now_ns();
  long i = 0;
  for (; i < at->records && !told_to_stop; i++) {
    int64_t due = started + i * (1000000000 / rate);
    struct timespec until = {due / 1000000000, due % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    memcpy(payload, &(int64_t){i}, sizeof(int64_t));
    sent_ns[i] = now_ns();
    if (rd_kafka_produce(topic, (int32_t)(i % at->partitions), RD_KAFKA_MSG_F_COPY, payload, (size_t)at->size, NULL, 0,
                         (void *)(intptr_t)i))
      die("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
  }
  free(payload);
  return i;
}

static void run_latency(const struct place *at, const char *acks, long rate, const char *samples) {
  rd_kafka_t *client = open_prompt_producer(at, acks, on_timed_report);
  rd_kafka_topic_t *topic = warm_up(client, at);
  make_times(at->records);
  pthread_t poller;
  if (pthread_create(&poller, NULL, poll_reports, client))
    die("no thread");
  signal(SIGTERM, on_stop);
  long sent = send_steadily(topic, at, rate);
  finish(client, sent);
  atomic_store(&polling, 0);
  pthread_join(poller, NULL);
  if (samples)
    save_times(samples, sent);
  print_times(sent);
  rd_kafka_topic_destroy(topic);
  rd_kafka_destroy(client);
}

struct arrivals {
  const struct place *at;
  rd_kafka_t *client;
  atomic_long warm;
};

static void *receive_all(void *opaque) {
  struct arrivals *arrivals = opaque;
  const struct place *at = arrivals->at;
  int64_t progress = now_ns();
  for (long count = 0; count < at->records;) {
    rd_kafka_message_t *message = rd_kafka_consumer_poll(arrivals->client, 100);
    int64_t now = now_ns(), i;
    if (!message) {
      if (now - progress > (int64_t)TIMEOUT_MS * 1000000)
        die("only %ld of %ld records came", count, at->records);
      continue;
    }
    if (message->err || message->len != (size_t)at->size)
      die("consume: %s, %zu bytes", rd_kafka_message_errstr(message), message->len);
    memcpy(&i, message->payload, sizeof i);
    if (i >= at->records || (i >= 0 && took_ns[i]))
      die("record %" PRId64 " came twice or was never sent", i);
    if (i < 0)
      atomic_fetch_add(&arrivals->warm, 1);
    else
      took_ns[i] = now - sent_ns[i], count++;
    progress = now;
    rd_kafka_message_destroy(message);
  }
  return NULL;
}

/* A consumer takes up to a second until it fetches from everywhere: nothing counts before one record of each
 * partition has come through. */
static void wait_for_flow(rd_kafka_topic_t *topic, struct arrivals *arrivals) {
  char *payload = make_payload(arrivals->at->size);
  memcpy(payload, &(int64_t){-1}, sizeof(int64_t));
  for (int32_t p = 0; p < arrivals->at->partitions; p++)
    if (rd_kafka_produce(topic, p, RD_KAFKA_MSG_F_COPY, payload, (size_t)arrivals->at->size, NULL, 0, NULL))
      die("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
  while (atomic_load(&arrivals->warm) < arrivals->at->partitions)
    clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){0, 1000000}, NULL);
  free(payload);
}

static void run_passage(const struct place *at, const char *acks, long rate) {
  rd_kafka_t *producer = open_prompt_producer(at, acks, on_error_report), *consumer = open_consumer(at);
  rd_kafka_topic_t *topic = warm_up(producer, at);
  make_times(at->records);
  rd_kafka_poll_set_consumer(consumer);
  assign_all(consumer, at, 0);
  pthread_t poller, receiver;
  struct arrivals arrivals = {at, consumer, 0};
  if (pthread_create(&poller, NULL, poll_reports, producer) ||
      pthread_create(&receiver, NULL, receive_all, &arrivals))
    die("no thread");
  wait_for_flow(topic, &arrivals);
  send_steadily(topic, at, rate);
  finish(producer, at->records);
  pthread_join(receiver, NULL);
  atomic_store(&polling, 0);
  pthread_join(poller, NULL);
  print_times(at->records);
  rd_kafka_consumer_close(consumer);
  rd_kafka_destroy(consumer);
  rd_kafka_topic_destroy(topic);
  rd_kafka_destroy(producer);
}

/* The value of the option `name=value`, "" for a bare `name`, NULL when it was not given. */
static const char *option(int argc, char **argv, int from, const char *name) {
  size_t length = strlen(name);
  for (int i = from; i < argc; i++)
    if (!strncmp(argv[i], name, length) && (argv[i][length] == '=' || !argv[i][length]))
      return argv[i] + length + (argv[i][length] == '=');
  return NULL;
}

int main(int argc, char **argv) {
  const char *usage = "usage: load produce|consume|latency|passage ... (see the top of load.c)";
  if (argc < 7)
    die(usage);
  const char *mode = argv[1];
  struct place at = {argv[2], argv[3], number(argv[4]), number(argv[5]), number(argv[6])};
  if (!strcmp(mode, "produce") && argc >= 8) {
    const char *time_ms = option(argc, argv, 8, "time");
    struct manner how = {argv[7], option(argc, argv, 8, "codec"), option(argc, argv, 8, "keyed") != NULL,
                         option(argc, argv, 8, "text") != NULL, time_ms ? number(time_ms) : 0};
    run_produce(&at, how);
  } else if (!strcmp(mode, "consume")) {
    const char *skip = option(argc, argv, 7, "skip");
    run_consume(&at, option(argc, argv, 7, "keyed") != NULL, skip ? number(skip) : 0);
  } else if (!strcmp(mode, "latency") && argc >= 9) {
    run_latency(&at, argv[7], number(argv[8]), option(argc, argv, 9, "samples"));
  } else if (!strcmp(mode, "passage") && argc == 9) {
    run_passage(&at, argv[7], number(argv[8]));
  } else {
    die(usage);
  }
  return 0;
}
