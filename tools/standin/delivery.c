/* Messages between the ranks of one machine.
 *
 * Each rank appends what it sends to logs, files of one folder (LEVELFIELD_STANDIN_SPACE), and reads those of others: one
 * log for its collectives in a group, one for each rank to which it sends. A record is a header, and the content where
 * that is small. Nothing waits when an operation is posted, as with NCCL. A rank waits when it reads, copies or sends
 * bytes into which an operation still has to write, and in standin_wait_all.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

#define PENDING_MOST 20000

static struct communicator *groups;
static uint64_t pending;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void compare(const struct operation *own, const struct header *other) {
  int same = own->count == other->count && own->type == (int)other->type;
  if (own->kind == RECV) same = same && other->kind == SEND;
  else same = same && own->kind == other->kind && own->reduction == (int)other->reduction && own->root == other->root;
  if (own->kind <= SPLIT) same = own->kind == other->kind;
  if (same) return;
  char why[400];
  snprintf(why, sizeof why, "rank %d called %s with count %llu, type %u, root %d as number %llu of group %s; this rank",
           other->sender, standin_kind_name(other->kind), (unsigned long long)other->count, other->type, other->root,
           (unsigned long long)other->number, own->group->words);
  standin_tell("called", own);
  standin_end(STANDIN_MISMATCH, why);
}

static void finish(struct operation *op);

/* Read what has come for an operation. Returns whether it is complete. */
static int advance(struct operation *op) {
  struct communicator *group = op->group;
  struct header header;
  if (op->kind == RECV) {
    if (!standin_take(group, op->peer, 1, &header, op->write, op->write_bytes)) return 0;
    compare(op, &header);
    return 1;
  }
  for (; op->taken < group->ranks; op->taken++) {
    if (op->taken == group->rank) continue;
    char *part = op->parts ? op->parts + op->taken * op->bytes : NULL;
    if (!standin_take(group, op->taken, 0, &header, part, op->bytes)) return 0;
    compare(op, &header);
  }
  finish(op);
  return 1;
}

static void finish(struct operation *op) {
  struct communicator *group = op->group;
  size_t share = op->bytes / group->ranks;
  if (!op->parts || !op->write) return;
  double factor = op->reduction > 4 && op->reduction - 5 < 64 ? group->factor[op->reduction - 5] : 1;
  if (op->kind == ALL_REDUCE || (op->kind == REDUCE && group->rank == op->root))
    standin_reduce(op->write, op->parts, group->ranks, op->count, op->type, op->reduction, factor);
  if (op->kind == REDUCE_SCATTER) {
    char *mine = malloc(op->bytes);
    for (int rank = 0; rank < group->ranks; rank++)
      memcpy(mine + rank * share, op->parts + rank * op->bytes + group->rank * share, share);
    standin_reduce(op->write, mine, group->ranks, op->count, op->type, op->reduction, factor);
    free(mine);
  }
  if (op->kind == ALL_GATHER || op->kind <= SPLIT) memcpy(op->write, op->parts, op->bytes * group->ranks);
  if (op->kind == BROADCAST) memcpy(op->write, op->parts + op->root * op->bytes, op->bytes);
  if (op->kind == ALL_TO_ALL)
    for (int rank = 0; rank < group->ranks; rank++)
      memcpy(op->write + rank * share, op->parts + rank * op->bytes + group->rank * share, share);
}

static void forget(struct communicator *group) {
  while (group->first && group->first->done) {
    struct operation *op = group->first;
    group->first = op->next;
    if (!group->first) group->last = NULL;
    free(op->parts);
    free(op);
    pending--;
  }
}

/* Complete what can be: the collectives of a group in their order, and the messages of each rank in theirs. */
static void advance_group(struct communicator *group) {
  char *late = calloc(group->ranks, 1), collectives_late = 0;
  for (struct operation *op = group->first; op; op = op->next) {
    char *waiting = op->kind == RECV ? &late[op->peer] : &collectives_late;
    if (op->done || *waiting) continue;
    op->done = advance(op);
    if (!op->done) *waiting = 1;
  }
  free(late);
  forget(group);
}

static void advance_all(void) {
  for (struct communicator *group = groups; group; group = group->next) advance_group(group);
}

struct patience {
  uint64_t alive;
  double since, started;
};

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

/* Pause with the lock released. Ends the process after a time in which no rank did anything, or twenty times that. */
static void pause_a_little(struct patience *patience, const struct operation *op, const char *why) {
  double limit = standin_setting("TIMEOUT_SECONDS", 60);
  standin_tell("waits in", op);
  if (!patience->started) patience->started = patience->since = now();
  uint64_t alive = standin_others(NULL);
  if (alive != patience->alive) patience->alive = alive, patience->since = now();
  if (now() - patience->since > limit || now() - patience->started > 20 * limit) standin_end(STANDIN_HANG, why);
  pthread_mutex_unlock(&lock);
  usleep(now() - patience->started < 0.01 ? 50 : 2000);
  pthread_mutex_lock(&lock);
}

static struct operation *into(const char *at, size_t bytes) {
  for (struct communicator *group = groups; group; group = group->next)
    for (struct operation *op = group->first; op; op = op->next)
      if (!op->done && op->write && at < op->write + op->write_bytes && op->write < at + bytes) return op;
  return NULL;
}

static void before(const void *address, size_t bytes) {
  struct patience patience = {0};
  for (struct operation *op; pending && (op = into(address, bytes));) {
    advance_all();
    if ((op = into(address, bytes))) pause_a_little(&patience, op, "hangs: a message did not come");
  }
  if (patience.started) standin_waited();
}

void standin_before(const void *address, size_t bytes) {
  if (!pending) return;
  pthread_mutex_lock(&lock);
  before(address, bytes);
  pthread_mutex_unlock(&lock);
}

static struct operation *oldest(void) {
  for (struct communicator *group = groups; group; group = group->next)
    if (group->first) return group->first;
  return NULL;
}

static void wait_until_sent(struct communicator *group) {
  for (int rank = 0; rank < group->ranks; rank++) {
    struct patience patience = {0};
    for (uint64_t taken = 0; group->sent[rank]; taken = 0) {
      if (pread(group->to[rank], &taken, sizeof taken, 0) != sizeof taken) taken = 0;
      if (taken >= group->sent[rank]) break;
      struct operation op = {.kind = SEND, .group = group, .number = taken + 1, .peer = rank};
      advance_all();
      pause_a_little(&patience, &op, "hangs: a message was not taken");
    }
  }
}

static void wait_all(void) {
  struct patience patience = {0};
  for (struct operation *op; advance_all(), op = oldest();)
    pause_a_little(&patience, op, "hangs: a message did not come");
  for (struct communicator *group = groups; group; group = group->next)
    if (group->delivered) wait_until_sent(group);
  standin_waited();
}

void standin_wait_all(void) {
  pthread_mutex_lock(&lock);
  wait_all();
  pthread_mutex_unlock(&lock);
}

static struct header header_of(const struct operation *op, size_t content) {
  struct header header = {.kind = op->kind, .number = op->number, .count = op->count, .type = op->type};
  header.reduction = op->reduction, header.root = op->root, header.sender = standin_global_rank(), header.content = content;
  return header;
}

static void queue(const struct operation *given) {
  struct operation *op = malloc(sizeof *op);
  struct communicator *group = given->group;
  *op = *given;
  if (group->last) group->last->next = op;
  else group->first = op;
  group->last = op;
  pending++;
}

static void post_send(struct operation *op, size_t content) {
  struct communicator *group = op->group;
  int peer = op->peer;
  if (group->to[peer] < 0) {
    group->to[peer] = standin_log_file(group, group->rank, peer, O_RDWR | O_CREAT);
    group->to_end[peer] = STANDIN_START;
  }
  standin_append(group->to[peer], &group->to_end[peer], header_of(op, content), op->read);
}

static void post_collective(struct operation *op, size_t content) {
  struct communicator *group = op->group;
  if (content) {
    op->parts = calloc(group->ranks, op->bytes);
    memcpy(op->parts + group->rank * op->bytes, op->read, op->bytes);
  }
  int speaks = op->kind != BROADCAST || op->root == group->rank;
  standin_append(group->own, &group->own_end, header_of(op, speaks ? content : 0), op->read);
  queue(op);
}

/* Post an operation of a group whose messages are delivered. */
void standin_post(struct operation *operation) {
  struct operation op = *operation;
  int carried = op.kind <= SPLIT || op.bytes <= (size_t)standin_setting("CONTENT_BYTES", 1 << 20);
  size_t content = carried ? op.bytes : 0;
  pthread_mutex_lock(&lock);
  if (op.read) before(op.read, op.bytes);
  if (op.write) before(op.write, op.write_bytes);
  if (!content) op.write = NULL;
  if (op.kind == RECV) op.number = op.group->received[op.peer] + 1;
  else if (op.kind == SEND) op.number = ++op.group->sent[op.peer];
  else if (op.kind > SPLIT) op.number = ++op.group->collectives;
  standin_tell("called", &op);
  standin_alive();
  if (op.kind == SEND) post_send(&op, content);
  else if (op.kind == RECV) queue(&op);
  else post_collective(&op, content);
  advance_all();
  if (pending > PENDING_MOST) wait_all();
  pthread_mutex_unlock(&lock);
}

static void name_members(struct communicator *group) {
  int used = snprintf(group->words, sizeof group->words, "of %d (ranks", group->ranks);
  for (int rank = 0; rank < group->ranks && used < 150; rank++)
    used += snprintf(group->words + used, 20, " %d", group->members[rank]);
  snprintf(group->words + used, 8, used < 150 ? ")" : " ...)");
}

/* All ranks give bytes and get those of all: waits. */
static void exchange(struct communicator *group, enum kind kind, void *own, size_t bytes, void *all) {
  struct operation op = {.kind = kind, .group = group, .count = bytes, .peer = -1, .root = -1, .bytes = bytes};
  op.read = own, op.write = all, op.write_bytes = bytes * group->ranks;
  standin_post(&op);
  standin_before(all, op.write_bytes);
}

static void open_logs(struct communicator *group) {
  group->from = malloc(group->ranks * sizeof *group->from);
  group->to = malloc(group->ranks * sizeof *group->to);
  group->to_end = calloc(group->ranks, sizeof *group->to_end);
  group->read_to = calloc(group->ranks, sizeof *group->read_to);
  for (int rank = 0; rank < group->ranks; rank++) group->to[rank] = group->from[rank][0] = group->from[rank][1] = -1;
  group->own = standin_log_file(group, group->rank, -1, O_RDWR | O_CREAT);
  group->own_end = STANDIN_START;
}

/* A group of this name. Where messages are delivered, this waits for all its ranks. */
struct communicator *standin_join(const char *name, int ranks, int rank) {
  struct communicator *group = calloc(1, sizeof *group);
  snprintf(group->name, sizeof group->name, "%s", name);
  group->ranks = ranks, group->rank = rank, group->delivered = standin_space() && ranks > 1;
  group->members = calloc(ranks, sizeof(int));
  group->sent = calloc(ranks, sizeof(uint64_t)), group->received = calloc(ranks, sizeof(uint64_t));
  for (int each = 0; each < ranks; each++) group->members[each] = each;
  snprintf(group->words, sizeof group->words, "of %d (%s)", ranks, name);
  if (!group->delivered) return group;
  int own = standin_global_rank();
  pthread_mutex_lock(&lock);
  standin_open_status();
  open_logs(group);
  group->next = groups, groups = group;
  pthread_mutex_unlock(&lock);
  exchange(group, INIT, &own, sizeof own, group->members);
  name_members(group);
  return group;
}

/* The rank and the size of this rank's part of a split group. */
int standin_split_key(struct communicator *group, int color, int key, int *rank, int *ranks) {
  int own[2] = {color, key}, (*all)[2] = calloc(group->ranks, sizeof own);
  *rank = *ranks = 0;
  exchange(group, SPLIT, own, sizeof own, all);
  for (int each = 0; each < group->ranks; each++) {
    if (all[each][0] != color) continue;
    ++*ranks;
    *rank += all[each][1] < key || (all[each][1] == key && each < group->rank);
  }
  free(all);
  return color < 0 ? -1 : 0;
}

static void close_logs(struct communicator *group) {
  for (int rank = 0; rank < group->ranks; rank++) {
    if (group->to[rank] >= 0) close(group->to[rank]);
    for (int which = 0; which < 2; which++)
      if (group->from[rank][which] >= 0) close(group->from[rank][which]);
  }
  close(group->own);
}

/* Leave a group; with `drained`, when its messages have come and been taken. */
void standin_leave(struct communicator *group, int drained) {
  if (!group->delivered) return;
  pthread_mutex_lock(&lock);
  struct patience patience = {0};
  while (drained && (advance_all(), group->first)) pause_a_little(&patience, group->first, "hangs: a message did not come");
  if (drained) wait_until_sent(group);
  for (struct communicator **each = &groups; *each; each = &(*each)->next)
    if (*each == group) {
      *each = group->next;
      break;
    }
  for (struct operation *op = group->first; op; op = op->next) pending--;
  close_logs(group);
  pthread_mutex_unlock(&lock);
}
