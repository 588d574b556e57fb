/* Allocations are address space that nobody touches; copies above a limit are counted and move nothing. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "standin.h"

enum { OUT_OF_MEMORY = 2 };
#define GRAIN ((size_t)2 << 20)

struct range {
  char *at;
  size_t bytes;
  int device;
};
__thread int standin_current_device;
static struct range *ranges; /* sorted by address */
static size_t many, room, used[STANDIN_DEVICES_MOST], peak[STANDIN_DEVICES_MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

size_t standin_context_bytes(void) { return standin_setting("CONTEXT_BYTES", 600ll << 20); }
size_t standin_device_bytes(void) { return standin_setting("BYTES", standin_chip()->bytes); }
size_t standin_used_bytes(int device) { return used[device]; }
size_t standin_peak_bytes(int device) { return peak[device]; }
void standin_reset_peaks(void) { memcpy(peak, used, sizeof peak); }

static size_t after(const void *address) { /* the first range that begins after the address */
  size_t low = 0, high = many;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges[middle].at <= (const char *)address) low = middle + 1;
    else high = middle;
  }
  return low;
}

static struct range *holding(const void *address) {
  size_t next = after(address);
  struct range *range = next ? &ranges[next - 1] : NULL;
  return range && (const char *)address < range->at + range->bytes ? range : NULL;
}

int standin_device_of(const void *address) {
  pthread_mutex_lock(&lock);
  struct range *range = holding(address);
  int device = range ? range->device : -1;
  pthread_mutex_unlock(&lock);
  return device;
}

void standin_hold(void *address, size_t bytes, int device) {
  char *at = address;
  pthread_mutex_lock(&lock);
  if (many == room) ranges = realloc(ranges, (room = room ? 2 * room : 1024) * sizeof *ranges);
  size_t place = after(at);
  memmove(ranges + place + 1, ranges + place, (many - place) * sizeof *ranges);
  ranges[place] = (struct range){at, bytes, device};
  many++;
  pthread_mutex_unlock(&lock);
}

/* Forget the range at this address. Returns its bytes, or 0 where there is none, and its device. */
size_t standin_let_go(void *address, int *device) {
  size_t bytes = 0;
  pthread_mutex_lock(&lock);
  struct range *range = holding(address);
  if (range) {
    bytes = range->bytes, *device = range->device;
    memmove(range, range + 1, (--many - (range - ranges)) * sizeof *ranges);
  }
  pthread_mutex_unlock(&lock);
  return bytes;
}

/* Take bytes of a device's memory, of which some are left. Returns whether there are so many. */
int standin_take_memory(int device, size_t bytes, size_t asked) {
  pthread_mutex_lock(&lock);
  int fits = used[device] + bytes + standin_context_bytes() <= standin_device_bytes();
  if (fits) used[device] += bytes;
  if (used[device] > peak[device]) peak[device] = used[device];
  pthread_mutex_unlock(&lock);
  standin_count("memory", fits ? "allocation" : "failed allocation", asked, 0);
  return fits;
}

void standin_return_memory(int device, size_t bytes) {
  pthread_mutex_lock(&lock);
  used[device] -= bytes;
  pthread_mutex_unlock(&lock);
  standin_count("memory", "free", 0, 0);
}

int cudaMalloc(void **out, size_t bytes) {
  int device = standin_current_device;
  size_t rounded = (bytes + GRAIN - 1) / GRAIN * GRAIN;
  if (!standin_take_memory(device, rounded, bytes)) return OUT_OF_MEMORY;
  *out = standin_addresses(rounded);
  standin_hold(*out, rounded, device);
  return 0;
}

void *standin_addresses(size_t bytes) {
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) perror("stand-in: the system has no address space left for a device's memory"), abort();
  return at;
}

int cudaFree(void *at) {
  if (!at) return 0;
  int device = 0;
  size_t bytes = standin_let_go(at, &device);
  if (bytes) munmap(at, bytes);
  standin_return_memory(device, bytes);
  return 0;
}

int cudaMallocAsync(void **out, size_t bytes, void *stream) { return cudaMalloc(out, bytes); }
int cudaFreeAsync(void *at, void *stream) { return cudaFree(at); }

int cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
  standin_count("memory", "host allocation", bytes, 0);
  return posix_memalign(out, 4096, bytes ? bytes : 1) ? OUT_OF_MEMORY : 0;
}

int cudaFreeHost(void *at) {
  free(at);
  return 0;
}

int cudaMemGetInfo(size_t *left, size_t *whole) {
  *whole = standin_device_bytes();
  *left = *whole - standin_context_bytes() - used[standin_current_device];
  return 0;
}

static void copy(void *to, const void *from, size_t bytes) {
  int there = standin_device_of(to) >= 0, here = standin_device_of(from) >= 0;
  size_t most = standin_is_quiet() ? bytes : (size_t)standin_setting("COPY_BYTES", 1 << 20);
  standin_alive();
  if (here) standin_before(from, bytes);
  if (there) standin_before(to, bytes);
  const char *name = here ? there ? "on device" : "device to host" : there ? "host to device" : "on host";
  standin_count("copy", name, bytes, 0);
  if (!there || bytes <= most) memmove(to, from, bytes);
}

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  copy(to, from, bytes);
  return 0;
}

int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  copy(to, from, bytes);
  return 0;
}

int cudaMemcpyPeerAsync(void *to, int device, const void *from, int other, size_t bytes, void *stream) {
  copy(to, from, bytes);
  return 0;
}

int cudaMemcpy2DAsync(void *to, size_t pitch, const void *from, size_t step, size_t width, size_t rows, int kind, void *s) {
  for (size_t row = 0; row < rows; row++) copy((char *)to + row * pitch, (const char *)from + row * step, width);
  return 0;
}

int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) {
  standin_before(to, bytes);
  standin_count("memset", "memset", bytes, 0);
  if (bytes <= (size_t)standin_setting("COPY_BYTES", 1 << 20)) memset(to, value, bytes);
  return 0;
}

int cudaMemset(void *to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, NULL); }
