/* Launches: counted by the kernel's name, which the program registers when it is loaded. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <driver_types.h>
#include <vector_types.h>

#include "standin.h"

struct kernel {
  const void *host;
  const char *name;
};
static struct kernel *kernels; /* sorted by address when `sorted` */
static size_t many, room;
static int sorted;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void **__cudaRegisterFatBinary(void *binary) { return calloc(1, 64); }

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *thread,
                            void *block, void *dim, void *grid, int *warp) {
  pthread_mutex_lock(&lock);
  if (many == room) kernels = realloc(kernels, (room = room ? 2 * room : 65536) * sizeof *kernels);
  kernels[many++] = (struct kernel){host, name};
  sorted = 0;
  pthread_mutex_unlock(&lock);
}

static int by_address(const void *a, const void *b) {
  const struct kernel *first = a, *second = b;
  return first->host < second->host ? -1 : first->host > second->host;
}

static const char *name_of(const void *host) {
  struct kernel wanted = {host, NULL}, *found;
  pthread_mutex_lock(&lock);
  if (!sorted) qsort(kernels, many, sizeof *kernels, by_address);
  sorted = 1;
  found = bsearch(&wanted, kernels, many, sizeof *kernels, by_address);
  const char *name = found ? found->name : "a kernel that was not registered";
  pthread_mutex_unlock(&lock);
  return name;
}

static int launch(const void *kernel) {
  standin_alive();
  standin_count("kernel", name_of(kernel), 0, 0);
  return 0;
}

int cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {
  return launch(kernel);
}

int cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {
  return launch(kernel);
}

int cudaLaunchKernelExC(const void *config, const void *kernel, void **arguments) { return launch(kernel); }

int __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {
  return launch(kernel);
}

int __cudaGetKernel(void **out, const void *host) {
  *out = (void *)host;
  return 0;
}

static __thread struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  configuration.grid = grid, configuration.block = block;
  configuration.shared = shared, configuration.stream = stream;
  return 0;
}

int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void **stream) {
  *grid = configuration.grid, *block = configuration.block;
  *shared = configuration.shared, *stream = configuration.stream;
  return 0;
}

char __cudaInitModule(void **handle) { return 1; }

int cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *kernel) {
  memset(out, 0, sizeof *out);
  out->maxThreadsPerBlock = 1024;
  out->numRegs = 32;
  out->ptxVersion = out->binaryVersion = 10 * standin_chip()->major + standin_chip()->minor;
  out->maxDynamicSharedSizeBytes = standin_chip()->shared_per_block_optin;
  return 0;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads, size_t shared) {
  *blocks = 2;
  return 0;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int threads, size_t shared,
                                                           unsigned flags) {
  *blocks = 2;
  return 0;
}

int cudaOccupancyMaxActiveClusters(int *clusters, const void *kernel, const void *config) {
  *clusters = standin_chip()->processors / 2;
  return 0;
}

int cudaGetSymbolAddress(void **out, const void *symbol) {
  *out = calloc(1, 4096);
  return 0;
}

long standin_nothing(void) { return 0; }

int cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags, int *status) {
  *out = dlsym(RTLD_DEFAULT, name);
  if (!*out) *out = (void *)standin_nothing;
  if (status) *status = 0;
  standin_count("driver", name, 0, 0);
  return 0;
}
