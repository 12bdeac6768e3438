/* Reads a topic as cheaply as a client can, so that the broker is the limit; prints one line of JSON.
 *
 *   fetch TOPIC PASSES HOST:PORT=PARTITION,PARTITION... [HOST:PORT=...]...
 *
 * Every further argument is a connection of its own, in a thread of its own, with the partitions it reads: all of each,
 * PASSES times, with one request at a time as any consumer sends them. Of the answers only what stands around the
 * batches and the 61 bytes at the head of each batch come into this process; the kernel drops the records
 * (MSG_TRUNC), which costs nobody a copy, as when a client has a machine of its own.
 *
 * What is dropped cannot be looked at, so the heads have to tell a broken answer: each batch begins at the offset
 * where the last one ended, has as many records as offsets, and a pass ends at the partition's high watermark, which
 * is the same in each pass. Whoever runs this compares `ends` (by partition) and `bytes` with what was written.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define TIMEOUT_S 60
#define MOST_PARTITIONS 100000
/* librdkafka's and the Java client's own: 1 MiB of a partition and 50 MiB of all in one answer. */
#define PARTITION_BYTES (1 << 20)
#define ANSWER_BYTES (50 << 20)
#define WAIT_MS 500
#define MOST_EMPTY 20 /* answers in a row without a whole batch */
#define API_FETCH 1
#define VERSION 4 /* the oldest that Kafka 4 speaks: names in place of ids, no sessions, nothing optional */
#define HEAD 61   /* of a batch, up to its first record */
#define LONGEST_NAME 300

static void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(1);
}

struct part {
  int32_t id;
  int64_t next, end; /* end: the high watermark, -1 until it is known */
};

struct connection {
  const char *address;
  int fd;
  struct part *parts;
  int count;
  int64_t left; /* of the answer being read */
  int64_t batches, bytes, records;
};

static const char *topic;
static long passes;
static pthread_barrier_t all_ready;

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int64_t big(const unsigned char *from, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; i++)
    value = value << 8 | from[i];
  return bytes == 8 ? (int64_t)value : bytes == 4 ? (int32_t)value : (int16_t)value;
}

static unsigned char *put(unsigned char *to, int64_t value, int bytes) {
  for (int i = bytes - 1; i >= 0; i--, value >>= 8)
    to[i] = (unsigned char)value;
  return to + bytes;
}

static unsigned char *put_name(unsigned char *to, const char *name) {
  size_t length = strlen(name);
  to = put(to, (int64_t)length, 2);
  memcpy(to, name, length);
  return to + length;
}

/* Takes bytes of the answer into `to`, or drops them for NULL. */
static void receive(struct connection *from, unsigned char *to, int64_t bytes) {
  if (bytes < 0 || bytes > from->left)
    die("%s: an answer ends within %" PRId64 " bytes, %" PRId64 " were left", from->address, bytes, from->left);
  from->left -= bytes;
  while (bytes) {
    ssize_t got = recv(from->fd, to, (size_t)bytes, MSG_WAITALL | (to ? 0 : MSG_TRUNC));
    if (got <= 0)
      die("%s: no more bytes: %s", from->address, got ? strerror(errno) : "closed by the broker");
    bytes -= got;
    to = to ? to + got : NULL;
  }
}

static int64_t receive_number(struct connection *from, int bytes) {
  unsigned char raw[8];
  receive(from, raw, bytes);
  return big(raw, bytes);
}

static void send_request(struct connection *to, unsigned char *request) {
  unsigned char *at = request + 4;
  at = put(put(put(at, API_FETCH, 2), VERSION, 2), 0, 4); /* and the correlation id */
  at = put_name(at, "bench-fetch");
  at = put(put(put(put(put(at, -1, 4), WAIT_MS, 4), 1, 4), ANSWER_BYTES, 4), 0, 1); /* one byte at least */
  at = put_name(put(at, 1, 4), topic);
  unsigned char *wanted = at;
  at += 4;
  int count = 0;
  for (int i = 0; i < to->count; i++) {
    struct part *part = &to->parts[i];
    if (part->end >= 0 && part->next == part->end)
      continue;
    at = put(put(put(at, part->id, 4), part->next, 8), PARTITION_BYTES, 4);
    count++;
  }
  put(wanted, count, 4);
  put(request, at - request - 4, 4);
  for (unsigned char *from = request; from < at;) {
    ssize_t sent = send(to->fd, from, (size_t)(at - from), MSG_NOSIGNAL);
    if (sent <= 0)
      die("%s: cannot send: %s", to->address, strerror(errno));
    from += sent;
  }
}

/* Goes from batch to batch; the last one may be cut off, and comes again. Returns how many were whole. */
static int walk(struct connection *from, struct part *part, int64_t left) {
  unsigned char head[HEAD];
  int whole = 0;
  while (left >= HEAD) {
    receive(from, head, HEAD);
    left -= HEAD;
    int64_t base = big(head, 8), rest = big(head + 8, 4) + 12 - HEAD;
    int64_t offsets = big(head + 23, 4) + 1, records = big(head + 57, 4);
    if (head[16] != 2 || rest < 0 || base != part->next || offsets < 1 || records != offsets)
      die("%s: partition %" PRId32 ": a batch of version %d with %" PRId64 " records for %" PRId64
          " offsets from %" PRId64 " on, expected offset %" PRId64,
          from->address, part->id, head[16], records, offsets, base, part->next);
    if (rest > left)
      break;
    receive(from, NULL, rest);
    left -= rest;
    part->next += offsets;
    from->records += records;
    from->bytes += HEAD + rest;
    from->batches++;
    whole++;
  }
  receive(from, NULL, left);
  if (part->next > part->end)
    die("%s: partition %" PRId32 ": offsets up to %" PRId64 ", behind the high watermark %" PRId64, from->address,
        part->id, part->next, part->end);
  return whole;
}

static struct part *find(struct connection *in, int64_t id) {
  for (int i = 0; i < in->count; i++)
    if (in->parts[i].id == id)
      return &in->parts[i];
  die("%s: an answer for partition %" PRId64 ", which was not asked for", in->address, id);
  return NULL;
}

static int receive_partition(struct connection *from, struct part **guess) {
  unsigned char raw[26]; /* number, error, high watermark, last stable offset, aborted transactions */
  receive(from, raw, sizeof raw);
  int64_t id = big(raw, 4), error = big(raw + 4, 2), end = big(raw + 6, 8), aborted = big(raw + 22, 4);
  struct part *part = *guess;
  if (part >= from->parts + from->count || part->id != id) /* answers come in the order of the request, mostly */
    part = find(from, id);
  *guess = part + 1;
  if (error)
    die("%s: partition %" PRId32 ": error %" PRId64, from->address, part->id, error);
  if (end < part->next || (part->end >= 0 && end != part->end))
    die("%s: partition %" PRId32 ": the high watermark is %" PRId64 " and was %" PRId64, from->address, part->id, end,
        part->end);
  part->end = end;
  receive(from, NULL, aborted > 0 ? aborted * 16 : 0);
  int64_t bytes = receive_number(from, 4);
  return bytes > 0 ? walk(from, part, bytes) : 0;
}

static int receive_answer(struct connection *from) {
  from->left = 4;
  from->left = receive_number(from, 4);
  receive(from, NULL, 8); /* correlation id, throttle time */
  int whole = 0;
  for (int64_t topics = receive_number(from, 4); topics > 0; topics--) {
    receive(from, NULL, receive_number(from, 2));
    struct part *guess = from->parts;
    for (int64_t count = receive_number(from, 4); count > 0; count--) {
      while (guess < from->parts + from->count && guess->end >= 0 && guess->next == guess->end)
        guess++;
      whole += receive_partition(from, &guess);
    }
  }
  if (from->left)
    die("%s: %" PRId64 " bytes behind the end of an answer", from->address, from->left);
  return whole;
}

static int unread(const struct connection *in) {
  for (int i = 0; i < in->count; i++)
    if (in->parts[i].end < 0 || in->parts[i].next < in->parts[i].end)
      return 1;
  return 0;
}

static void *read_all(void *opaque) {
  struct connection *own = opaque;
  unsigned char *request = malloc(2 * LONGEST_NAME + 64 + (size_t)own->count * 16);
  pthread_barrier_wait(&all_ready);
  for (long pass = 0; pass < passes; pass++) {
    for (int i = 0; i < own->count; i++)
      own->parts[i].next = 0;
    for (int empty = 0; unread(own);) {
      send_request(own, request);
      empty = receive_answer(own) ? 0 : empty + 1;
      if (empty > MOST_EMPTY)
        die("%s: no whole batch in %d answers", own->address, empty);
    }
  }
  free(request);
  return NULL;
}

/* HOST:PORT=PARTITION,PARTITION... with an address in numbers */
static void open_connection(struct connection *made, char *argument) {
  char *parts = strchr(argument, '='), *port = strrchr(argument, ':');
  if (!parts || !port || port > parts)
    die("%s is not HOST:PORT=PARTITIONS", argument);
  *parts++ = 0;
  *made = (struct connection){.address = strdup(argument), .parts = calloc(MOST_PARTITIONS, sizeof *made->parts)};
  for (char *word = strtok(parts, ","); word; word = strtok(NULL, ",")) {
    if (made->count == MOST_PARTITIONS)
      die("more than %d partitions", MOST_PARTITIONS);
    made->parts[made->count++] = (struct part){.id = (int32_t)atol(word), .end = -1};
  }
  *port++ = 0;
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  if (inet_pton(AF_INET, argument, &to.sin_addr) != 1)
    die("%s is no address in numbers", argument);
  struct timeval patience = {TIMEOUT_S, 0};
  int one = 1;
  made->fd = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(made->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(made->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (made->fd < 0 || connect(made->fd, (struct sockaddr *)&to, sizeof to))
    die("%s: %s", made->address, strerror(errno));
}

static double own_cpu_s(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void print_all(const struct connection *all, int count, double seconds, double cpu_s) {
  int64_t batches = 0, bytes = 0, records = 0;
  const char *between = "";
  for (int i = 0; i < count; i++)
    batches += all[i].batches, bytes += all[i].bytes, records += all[i].records;
  printf("{\"seconds\": %.6f, \"cpu_s\": %.6f, \"records\": %" PRId64 ", \"bytes\": %" PRId64 ", \"batches\": %" PRId64
         ", \"ends\": {",
         seconds, cpu_s, records, bytes, batches);
  for (int i = 0; i < count; i++)
    for (int j = 0; j < all[i].count; j++, between = ", ")
      printf("%s\"%" PRId32 "\": %" PRId64, between, all[i].parts[j].id, all[i].parts[j].end);
  printf("}}\n");
}

int main(int argc, char **argv) {
  if (argc < 4 || strlen(argv[1]) > LONGEST_NAME - 50 || (passes = atol(argv[2])) < 1)
    die("usage: fetch TOPIC PASSES HOST:PORT=PARTITION,PARTITION... (see the top of fetch.c)");
  topic = argv[1];
  int count = argc - 3;
  struct connection *all = calloc((size_t)count, sizeof *all);
  pthread_t *threads = calloc((size_t)count, sizeof *threads);
  pthread_barrier_init(&all_ready, NULL, (unsigned)count + 1);
  for (int i = 0; i < count; i++) {
    open_connection(&all[i], argv[3 + i]);
    if (pthread_create(&threads[i], NULL, read_all, &all[i]))
      die("no thread");
  }
  pthread_barrier_wait(&all_ready);
  double started = now_s(), before_s = own_cpu_s();
  for (int i = 0; i < count; i++)
    pthread_join(threads[i], NULL);
  print_all(all, count, now_s() - started, own_cpu_s() - before_s);
  return 0;
}
