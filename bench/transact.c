/* Commits transactions one after the other through librdkafka and prints what it measured as one line of JSON.
 *
 *   transact BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE WARM_MS TIMED_MS
 *
 * RECORDS are those of one transaction, spread over the partitions. What commits in the first WARM_MS is not timed,
 * but counted in `all`. Any error ends the program.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <librdkafka/rdkafka.h>

#define TIMEOUT_MS 60000

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void die(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *value) {
  char why[512];
  if (rd_kafka_conf_set(conf, key, value, why, sizeof why) != RD_KAFKA_CONF_OK)
    die(key, why);
}

static void check(const char *what, rd_kafka_error_t *error) {
  if (error)
    die(what, rd_kafka_error_string(error));
}

static void commit_one(rd_kafka_t *client, rd_kafka_topic_t *topic, long partitions, long records, char *payload,
                       size_t size) {
  check("begin", rd_kafka_begin_transaction(client));
  for (long i = 0; i < records; i++)
    while (rd_kafka_produce(topic, (int32_t)(i % partitions), 0, payload, size, NULL, 0, NULL)) {
      if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
        die("produce", rd_kafka_err2str(rd_kafka_last_error()));
      rd_kafka_poll(client, 5);
    }
  check("commit", rd_kafka_commit_transaction(client, TIMEOUT_MS));
}

int main(int argc, char **argv) {
  if (argc != 8)
    die("usage", "see the top of transact.c");
  long partitions = atol(argv[3]), records = atol(argv[4]), size = atol(argv[5]);
  int64_t warm_ns = atol(argv[6]) * (int64_t)1000000, timed_ns = atol(argv[7]) * (int64_t)1000000;
  char why[512], id[300];
  snprintf(id, sizeof id, "bench-%s", argv[2]);
  rd_kafka_conf_t *conf = rd_kafka_conf_new();
  set(conf, "bootstrap.servers", argv[1]);
  set(conf, "transactional.id", id);
  set(conf, "socket.nagle.disable", "true");
  set(conf, "linger.ms", "5");
  set(conf, "batch.size", "1000000");
  rd_kafka_t *client = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
  if (!client)
    die("client", why);
  rd_kafka_topic_t *topic = rd_kafka_topic_new(client, argv[2], NULL);
  char *payload = malloc((size_t)size);
  srand(1);
  for (long i = 0; i < size; i++)
    payload[i] = (char)rand();
  check("init", rd_kafka_init_transactions(client, TIMEOUT_MS));

  int64_t started = now_ns();
  long all = 0, count = 0;
  for (; now_ns() - started < warm_ns; all++)
    commit_one(client, topic, partitions, records, payload, (size_t)size);
  int64_t begun = now_ns();
  for (; now_ns() - begun < timed_ns; count++)
    commit_one(client, topic, partitions, records, payload, (size_t)size);
  printf("{\"seconds\": %.6f, \"transactions\": %ld, \"all\": %ld}\n", (double)(now_ns() - begun) / 1e9, count,
         all + count);
  rd_kafka_topic_destroy(topic);
  rd_kafka_destroy(client);
  free(payload);
  return 0;
}
