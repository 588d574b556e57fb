/* NCCL's calls. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

typedef struct {
  char internal[128];
} Id;
int cudaMalloc(void **out, size_t bytes);
int cudaFree(void *at);

size_t standin_width(int type) {
  static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < 12 ? widths[type] : 1;
}

const char *standin_kind_name(enum kind kind) {
  static const char *const names[] = {"init",      "split",  "all_reduce", "all_gather", "reduce_scatter",
                                      "broadcast", "reduce", "all_to_all", "send",       "recv"};
  return names[kind];
}

/* ---- groups */
int ncclGetVersion(int *version) {
  *version = 22907;
  return 0;
}

int ncclGetUniqueId(Id *id) {
  static int made;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "g%d-%ld-%d", getpid(), now.tv_nsec, made++);
  return 0;
}

static int join(struct communicator **out, const char *name, int ranks, int rank) {
  char words[40];
  snprintf(words, sizeof words, "communicator of %d", ranks);
  standin_count("group", words, 0, 0);
  *out = standin_join(name, ranks, rank);
  return 0;
}

/* An identity of another origin, as a store without other ranks gives it, may hold any bytes. */
static int join_by_id(struct communicator **out, int ranks, const Id *id, int rank) {
  char name[40] = "";
  for (int i = 0; i < 39 && id->internal[i] > 32 && id->internal[i] != '/'; i++) name[i] = id->internal[i];
  return join(out, name, ranks, rank);
}

int ncclCommInitRank(struct communicator **out, int ranks, Id id, int rank) { return join_by_id(out, ranks, &id, rank); }

int ncclCommInitRankConfig(struct communicator **out, int ranks, Id id, int rank, void *config) {
  return join_by_id(out, ranks, &id, rank);
}

int ncclCommInitRankScalable(struct communicator **out, int ranks, int rank, int many, Id *ids, void *config) {
  return join_by_id(out, ranks, ids, rank);
}

/* Who else gives the same color only the others know, so a rank alone is told its place before it splits a group. */
static __thread int told_rank, told_ranks;
void standin_next_split(int rank, int ranks) { told_rank = rank, told_ranks = ranks; }

static void told_place(const struct communicator *group, int *rank, int *ranks) {
  if (group->ranks == 1) return;
  if (told_ranks < 1 || told_ranks > group->ranks || told_rank < 0 || told_rank >= told_ranks) {
    fprintf(stderr, "stand-in: a rank alone splits a group of %d and was told rank %d of %d; call standin_next_split\n",
            group->ranks, told_rank, told_ranks);
    exit(2);
  }
  *rank = told_rank, *ranks = told_ranks;
  standin_next_split(0, 0);
}

int ncclCommSplit(struct communicator *group, int color, int key, struct communicator **out, void *config) {
  char name[64];
  int rank = group->rank, ranks = group->ranks, outside = color < 0;
  snprintf(name, sizeof name, "%.40s-%llu.%d", group->name, (unsigned long long)group->splits++, color);
  if (group->delivered) outside = standin_split_key(group, color, key, &rank, &ranks) < 0;
  else if (!outside) told_place(group, &rank, &ranks);
  *out = NULL;
  return outside ? 0 : join(out, name, ranks, rank);
}

int ncclCommDestroy(struct communicator *group) {
  standin_leave(group, 1);
  return 0;
}

int ncclCommAbort(struct communicator *group) {
  standin_leave(group, 0);
  return 0;
}

int ncclCommCount(struct communicator *group, int *ranks) {
  *ranks = group->ranks;
  return 0;
}

int ncclCommUserRank(struct communicator *group, int *rank) {
  *rank = group->rank;
  return 0;
}

int ncclCommGetAsyncError(struct communicator *group, int *error) {
  *error = 0;
  return 0;
}

const char *ncclGetErrorString(int error) { return error ? "an error of the stand-in" : "no error"; }
const char *ncclGetLastError(struct communicator *group) { return "none"; }
int ncclMemAlloc(void **out, size_t bytes) { return cudaMalloc(out, bytes); }
int ncclMemFree(void *at) { return cudaFree(at); }

int ncclRedOpCreatePreMulSum(int *out, const void *factor, int type, int residence, struct communicator *group) {
  float single = 1;
  double number = 1;
  if (type == 7) memcpy(&single, factor, 4), number = single;
  if (type == 8) memcpy(&number, factor, 8);
  *out = 5 + group->factors % 64;
  group->factor[group->factors++ % 64] = number;
  return 0;
}

int ncclRedOpDestroy(int reduction, struct communicator *group) { return 0; }

/* ---- a rank alone: what others would have sent is like what this rank sends */
static __thread struct { const char *at; size_t bytes; int peer; } given[1024];
static __thread int depth, givens;

int ncclGroupStart(void) {
  if (!depth++) givens = 0;
  return 0;
}

int ncclGroupEnd(void) {
  if (depth) depth--;
  return 0;
}

static int small(size_t bytes) { return bytes <= (size_t)standin_setting("CONTENT_BYTES", 1 << 20); }

static void alone_messages(const struct operation *op) {
  if (op->kind == SEND && depth && givens < 1024) {
    given[givens].at = op->read, given[givens].bytes = op->bytes, given[givens++].peer = op->peer;
    return;
  }
  if (op->kind != RECV || !small(op->bytes)) return;
  memset(op->write, 0, op->bytes);
  for (int i = 0; i < givens && depth; i++)
    if (given[i].peer == op->peer) memmove(op->write, given[i].at, given[i].bytes < op->bytes ? given[i].bytes : op->bytes);
}

static void alone(const struct operation *op) {
  int ranks = op->group->ranks;
  alone_messages(op);
  if (!small(op->bytes) || !op->write || op->kind >= SEND || op->read == op->write) return;
  if (op->kind == ALL_GATHER)
    for (int rank = 0; rank < ranks; rank++) memmove(op->write + rank * op->bytes, op->read, op->bytes);
  else if (op->kind == REDUCE_SCATTER)
    memmove(op->write, op->read + op->group->rank * (op->bytes / ranks), op->bytes / ranks);
  else if (op->kind != BROADCAST || op->root == op->group->rank) memmove(op->write, op->read, op->bytes);
}

/* ---- operations. parts: how often count a rank's own part has; written: bytes that this rank gets */
static int post(struct operation op, size_t written) {
  char words[60];
  snprintf(words, sizeof words, "%s over %d", standin_kind_name(op.kind), op.group->ranks);
  size_t counted = written > op.bytes ? written : op.bytes;
  standin_count("collective", words, counted, 0);
  op.write_bytes = written;
  if (op.group->delivered) standin_post(&op);
  else alone(&op);
  return 0;
}

#define OPERATION(KIND, S, R, N, T, PARTS) \
  (struct operation) { \
    .kind = KIND, .group = group, .count = N, .type = T, .root = -1, .peer = -1, .read = (char *)(S), .write = (char *)(R), \
    .bytes = (N) * standin_width(T) * (PARTS) \
  }

int ncclAllReduce(const void *s, void *r, size_t n, int type, int reduction, struct communicator *group, void *stream) {
  struct operation op = OPERATION(ALL_REDUCE, s, r, n, type, 1);
  op.reduction = reduction;
  return post(op, op.bytes);
}

int ncclAllGather(const void *s, void *r, size_t n, int type, struct communicator *group, void *stream) {
  struct operation op = OPERATION(ALL_GATHER, s, r, n, type, 1);
  return post(op, op.bytes * group->ranks);
}

int ncclReduceScatter(const void *s, void *r, size_t n, int type, int reduction, struct communicator *group, void *stream) {
  struct operation op = OPERATION(REDUCE_SCATTER, s, r, n, type, group->ranks);
  op.reduction = reduction;
  return post(op, op.bytes / group->ranks);
}

int ncclBroadcast(const void *s, void *r, size_t n, int type, int root, struct communicator *group, void *stream) {
  struct operation op = OPERATION(BROADCAST, s, r, n, type, 1);
  op.root = root;
  if (root != group->rank) op.read = op.write;
  return post(op, op.bytes);
}

int ncclBcast(void *s, size_t n, int type, int root, struct communicator *group, void *stream) {
  return ncclBroadcast(s, s, n, type, root, group, stream);
}

int ncclReduce(const void *s, void *r, size_t n, int type, int reduction, int root, struct communicator *group, void *stream) {
  struct operation op = OPERATION(REDUCE, s, r, n, type, 1);
  op.root = root, op.reduction = reduction;
  if (root != group->rank) op.write = NULL;
  return post(op, op.write ? op.bytes : 0);
}

int ncclAlltoAll(const void *s, void *r, size_t n, int type, struct communicator *group, void *stream) {
  struct operation op = OPERATION(ALL_TO_ALL, s, r, n, type, group->ranks);
  return post(op, op.bytes);
}

int ncclSend(const void *s, size_t n, int type, int peer, struct communicator *group, void *stream) {
  struct operation op = OPERATION(SEND, s, NULL, n, type, 1);
  op.peer = peer;
  return post(op, 0);
}

int ncclRecv(void *r, size_t n, int type, int peer, struct communicator *group, void *stream) {
  struct operation op = OPERATION(RECV, NULL, r, n, type, 1);
  op.peer = peer;
  return post(op, op.bytes);
}
