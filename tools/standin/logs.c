/* The files by which the ranks of a machine know of each other: logs of records, and a page of status for each rank. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "standin.h"

#define MAGIC 0x1e7e1f1e

struct status { /* one page for each rank, that the others read when they wait */
  volatile uint64_t alive;
  char words[1000];
};
static struct status *own_status;

const char *standin_space(void) {
  const char *folder = getenv("LEVELFIELD_STANDIN_SPACE");
  return folder && *folder ? folder : NULL;
}

int standin_global_rank(void) {
  const char *rank = getenv("RANK");
  return rank ? atoi(rank) : 0;
}

static int open_file(const char *name, int flags) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", standin_space(), name);
  int file = open(path, flags | O_CLOEXEC, 0600);
  if (file < 0 && !(errno == ENOENT && !(flags & O_CREAT))) {
    fprintf(stderr, "stand-in: %s cannot be opened: %s\n", path, strerror(errno));
    exit(STANDIN_HANG);
  }
  return file;
}

int standin_log_file(struct communicator *group, int from, int to, int flags) {
  char name[160];
  snprintf(name, sizeof name, "%s.%d.%d", group->name, from, to); /* to -1: a log of collectives */
  return open_file(name, flags);
}

void standin_open_status(void) {
  if (own_status) return;
  char name[40];
  snprintf(name, sizeof name, "status.%d", standin_global_rank());
  int file = open_file(name, O_RDWR | O_CREAT);
  if (ftruncate(file, sizeof *own_status)) perror("stand-in");
  own_status = mmap(NULL, sizeof *own_status, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
}

void standin_alive(void) {
  if (own_status) own_status->alive++;
}

void standin_tell(const char *verb, const struct operation *operation) {
  const char *name = standin_kind_name(operation->kind);
  if (!own_status) return;
  int used = snprintf(own_status->words, sizeof own_status->words, "%s %s", verb, name);
  char *at = own_status->words + used;
  if (operation->peer >= 0)
    used += snprintf(at, 60, " %s rank %d", operation->kind == SEND ? "to" : "from", operation->group->members[operation->peer]);
  snprintf(own_status->words + used, sizeof own_status->words - used, ", number %llu of group %s, count %llu, type %d",
           (unsigned long long)operation->number, operation->group->words, (unsigned long long)operation->count,
           operation->type);
}

/* The wait that this rank told of is over. */
void standin_waited(void) {
  if (own_status && !strncmp(own_status->words, "waits in", 8)) memcpy(own_status->words, "has done", 8);
}

/* What each rank of the machine does, to a file; returns the sum of their signs of life. */
uint64_t standin_others(void *file) {
  FILE *out = file;
  uint64_t alive = 0;
  DIR *folder = opendir(standin_space());
  for (struct dirent *each; folder && (each = readdir(folder));) {
    struct status status;
    if (strncmp(each->d_name, "status.", 7)) continue;
    int page = open_file(each->d_name, O_RDONLY);
    if (page < 0) continue;
    if (pread(page, &status, sizeof status, 0) == sizeof status) {
      alive += status.alive;
      if (out) fprintf(out, "  rank %s: %s\n", each->d_name + 7, status.words[0] ? status.words : "has sent nothing");
    }
    close(page);
  }
  if (folder) closedir(folder);
  return alive;
}

void standin_end(int code, const char *why) {
  fprintf(stderr, "stand-in: rank %d: %s: %s\nstand-in: each rank, by its last operation:\n", standin_global_rank(), why,
          own_status ? own_status->words : "");
  standin_others(stderr);
  fflush(NULL);
  _exit(code);
}

void standin_append(int file, uint64_t *end_at, struct header header, const char *content) {
  header.magic = MAGIC;
  char *whole = malloc(sizeof header + header.content);
  memcpy(whole, &header, sizeof header);
  if (header.content) memcpy(whole + sizeof header, content, header.content);
  size_t left = sizeof header + header.content, done = 0;
  while (left) {
    ssize_t wrote = pwrite(file, whole + done, left, *end_at + done);
    if (wrote < 0) standin_end(STANDIN_HANG, "a message cannot be written (is the folder full?)");
    done += wrote, left -= wrote;
  }
  *end_at += done;
  free(whole);
}

static int reader(struct communicator *group, int rank, int messages) {
  int *file = &group->from[rank][messages];
  if (*file < 0) *file = standin_log_file(group, rank, messages ? group->rank : -1, messages ? O_RDWR : O_RDONLY);
  return *file;
}

/* Whether the next record of a rank is here; its content is read into `part`, which has room for `most` bytes. */
int standin_take(struct communicator *group, int rank, int messages, struct header *header, char *part, size_t most) {
  int file = reader(group, rank, messages);
  uint64_t at = STANDIN_START + group->read_to[rank][messages];
  if (file < 0 || pread(file, header, sizeof *header, at) != sizeof *header || header->magic != MAGIC) return 0;
  size_t wanted = header->content < most ? header->content : most;
  char last;
  if (header->content && pread(file, &last, 1, at + sizeof *header + header->content - 1) != 1) return 0;
  if (part && wanted && pread(file, part, wanted, at + sizeof *header) != (ssize_t)wanted) return 0;
  group->read_to[rank][messages] += sizeof *header + header->content;
  if (messages) {
    uint64_t taken = ++group->received[rank];
    if (pwrite(file, &taken, sizeof taken, 0) < 0) standin_end(STANDIN_HANG, "a message cannot be marked as taken");
    if (header->content > 65536) fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, header->content);
  }
  return 1;
}
