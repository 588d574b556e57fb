/* The stand-in for CUDA: kernels do nothing, device memory is address space, and all calls are counted.
 *
 * books.c        what is counted, and settings by environment variables
 * memory.c       allocations and copies
 * devices.c      what the devices are
 * streams.c      streams and events: all work is done when it is launched
 * graphs.c       CUDA graphs: what is captured, and their launches
 * kernels.c      launches, counted by name
 * products.c     cuBLAS and cuBLASLt
 * attention.c    transformer-engine's fused attention
 * collectives.c  NCCL's calls
 * delivery.c     messages between the ranks of this machine
 * logs.c         the files that carry them
 * reduction.c    sums and other reductions of small messages
 * driver.c       the driver's own functions
 * mapping.c      ... those that map memory into reserved addresses, for torch's expandable segments
 * mark.c         what says that nothing here is real
 * nvml.c         a library of its own: NVML; smi.c: nvidia-smi
 *
 * books, memory, graphs, collectives, delivery, logs, reduction, attention and mark need no header of CUDA: the tests build them
 * with gcc alone.
 */
#ifndef LEVELFIELD_STANDIN_H
#define LEVELFIELD_STANDIN_H

#include <stddef.h>
#include <stdint.h>

#define STANDIN_DEVICES_MOST 64
#define STANDIN_HANG 86     /* exit code: a message that never came, or that nobody took */
#define STANDIN_MISMATCH 87 /* exit code: ranks of a group called different operations */

/* ---- books.c */
struct chip {
  const char *key, *name;
  size_t bytes;
  int major, minor, processors, memory_bus_bits, l2_bytes, shared_per_processor, shared_per_block_optin;
  int power_milliwatts;
};
const struct chip *standin_chip(void);
int standin_devices(void);
int standin_old_driver(void);
long long standin_setting(const char *name, long long otherwise);
void standin_count(const char *kind, const char *name, unsigned long long bytes, double flops);
int standin_is_quiet(void);
void standin_reset(void);
int standin_dump(const char *path);
void standin_calls(const char *path);

/* ---- graphs.c */
const char *standin_kind_in_capture(const char *kind, double flops);
int standin_wait_code(const void *stream);
int standin_any_wait_code(void);

/* ---- memory.c */
extern __thread int standin_current_device;
size_t standin_context_bytes(void);
size_t standin_device_bytes(void);
size_t standin_used_bytes(int device);
size_t standin_peak_bytes(int device);
void standin_reset_peaks(void);
int standin_device_of(const void *address); /* -1: not of a device */
void *standin_addresses(size_t bytes);
void standin_hold(void *address, size_t bytes, int device);
size_t standin_let_go(void *address, int *device);
int standin_take_memory(int device, size_t bytes, size_t asked);
void standin_return_memory(int device, size_t bytes);

/* ---- delivery.c and collectives.c */
enum kind { INIT, SPLIT, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL, SEND, RECV };

struct header {
  uint32_t magic, kind;
  uint64_t number, count;
  uint32_t type, reduction;
  int32_t root, sender;
  uint64_t content; /* bytes that follow */
  uint64_t unused;
};

struct operation {
  enum kind kind;
  struct communicator *group;
  uint64_t number, count;
  int type, reduction, root, peer, taken; /* taken: ranks whose part has been read */
  size_t bytes;                           /* of one part */
  char *read, *write;                     /* the caller's buffers; write may be NULL */
  size_t write_bytes;
  char *parts; /* contents of all ranks, one after another; NULL where only sizes travel */
  int done;
  struct operation *next;
};

struct communicator {
  char name[64], words[200];
  int ranks, rank, delivered;
  uint64_t collectives, splits, *sent, *received;
  int own, (*from)[2], *to; /* logs: of this rank's collectives, of others (collectives, messages to here), to others */
  uint64_t own_end, *to_end, (*read_to)[2];
  int *members; /* global ranks */
  double factor[64];
  int factors;
  struct operation *first, *last;
  struct communicator *next;
};

struct communicator *standin_join(const char *name, int ranks, int rank);
void standin_leave(struct communicator *group, int drained);
void standin_post(struct operation *operation); /* takes a copy */
void standin_wait_all(void);                    /* until every message has come and been taken */
void standin_before(const void *address, size_t bytes); /* what still has to come into these bytes comes first */
int standin_split_key(struct communicator *group, int color, int key, int *rank, int *ranks);
void standin_alive(void);
size_t standin_width(int type);
const char *standin_kind_name(enum kind kind);

/* ---- logs.c */
#define STANDIN_START 64 /* bytes before a log's first record: how many records its reader has taken */
const char *standin_space(void); /* the folder; NULL: no messages are delivered */
int standin_global_rank(void);
void standin_open_status(void);
void standin_tell(const char *verb, const struct operation *operation);
void standin_waited(void);
uint64_t standin_others(void *file); /* signs of life of all; what each does goes to the FILE, where it is given */
void standin_end(int code, const char *why);
int standin_log_file(struct communicator *group, int from, int to, int flags);
void standin_append(int file, uint64_t *end_at, struct header header, const char *content);
int standin_take(struct communicator *group, int rank, int messages, struct header *header, char *part, size_t most);

/* ---- reduction.c */
void standin_reduce(char *out, const char *parts, int ranks, size_t count, int type, int reduction, double factor);

#endif
