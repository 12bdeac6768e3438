/* The least a broker can do: receive bytes, write them to a file, send the file back. Prints one line of JSON.
 *
 *   floor FILE BYTES
 *
 * The child is the broker, with one connection; the parent sends BYTES and reads them back. The child's CPU time
 * is the floor that no broker on this machine gets below, whatever its language.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHUNK (1 << 20)

static char buffer[CHUNK];

static void check(int good, const char *what) {
  if (!good) {
    perror(what);
    exit(1);
  }
}

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void serve(int listener, const char *path, long bytes) {
  int peer = accept(listener, NULL, NULL);
  check(peer >= 0, "accept");
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  check(file >= 0, "open");
  for (long done = 0; done < bytes;) {
    ssize_t got = recv(peer, buffer, sizeof buffer, 0);
    check(got > 0, "recv");
    for (ssize_t written = 0; written < got;) {
      ssize_t more = write(file, buffer + written, (size_t)(got - written));
      check(more > 0, "write");
      written += more;
    }
    done += got;
  }
  for (off_t from = 0; from < bytes;)
    check(sendfile(peer, file, &from, CHUNK) > 0, "sendfile");
  exit(0);
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: floor FILE BYTES\n");
    return 1;
  }
  long bytes = atol(argv[2]);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  check(bind(listener, (struct sockaddr *)&address, size) == 0, "bind");
  check(listen(listener, 1) == 0, "listen");
  check(getsockname(listener, (struct sockaddr *)&address, &size) == 0, "getsockname");
  pid_t child = fork();
  check(child >= 0, "fork");
  if (child == 0)
    serve(listener, argv[1], bytes);

  int peer = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  check(connect(peer, (struct sockaddr *)&address, size) == 0, "connect");
  setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  memset(buffer, 'x', sizeof buffer);
  double started = now_s();
  for (long left = bytes; left > 0;) {
    ssize_t sent = send(peer, buffer, left < CHUNK ? (size_t)left : CHUNK, 0);
    check(sent > 0, "send");
    left -= sent;
  }
  double first = 0;
  for (long left = bytes; left > 0;) {
    ssize_t got = recv(peer, buffer, sizeof buffer, 0);
    check(got > 0, "recv");
    if (!first)
      first = now_s(); /* the first byte comes back once the last one is written */
    left -= got;
  }
  double ended = now_s();
  int status;
  struct rusage usage;
  check(wait4(child, &status, 0, &usage) == child && status == 0, "the serving child");
  double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  printf("{\"bytes\": %ld, \"cpu_s\": %.6f, \"in_s\": %.6f, \"out_s\": %.6f}\n", bytes, cpu, first - started,
         ended - first);
  unlink(argv[1]);
  return 0;
}
