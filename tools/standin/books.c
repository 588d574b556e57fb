/* Counts by kind and name, and the settings. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

#define GIB(x) ((size_t)((x) * 1073741824.0))
#define SLOTS 16384

static const struct chip chips[] = {
    {"H100-80", "NVIDIA H100 80GB HBM3", 84929347584ull, 9, 0, 132, 5120, 52428800, 233472, 232448, 700000},
    {"H200", "NVIDIA H200", 150109880320ull, 9, 0, 132, 6144, 62914560, 233472, 232448, 700000},
    {"A100-80", "NVIDIA A100-SXM4-80GB", 85094825984ull, 8, 0, 108, 5120, 41943040, 167936, 166912, 400000},
    {"A100-40", "NVIDIA A100-SXM4-40GB", 42297786368ull, 8, 0, 108, 5120, 41943040, 167936, 166912, 400000},
    {"V100-16", "Tesla V100-SXM2-16GB", 16935682048ull, 7, 0, 80, 4096, 6291456, 98304, 98304, 300000},
};

long long standin_setting(const char *name, long long otherwise) {
  char whole[96];
  snprintf(whole, sizeof whole, "LEVELFIELD_STANDIN_%s", name);
  const char *text = getenv(whole);
  return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

const struct chip *standin_chip(void) {
  static const struct chip *chosen;
  if (chosen) return chosen;
  const char *key = getenv("LEVELFIELD_STANDIN_CHIP");
  for (size_t i = 0; key && i < sizeof chips / sizeof *chips; i++)
    if (!strcmp(chips[i].key, key)) return chosen = &chips[i];
  if (key && *key) {
    fprintf(stderr, "LEVELFIELD_STANDIN_CHIP: found '%s'; expected one of", key);
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++) fprintf(stderr, " %s", chips[i].key);
    fprintf(stderr, "\n");
    exit(2);
  }
  return chosen = &chips[0];
}

int standin_devices(void) {
  long long devices = standin_setting("DEVICES", 8);
  return devices < 0 ? 0 : devices > STANDIN_DEVICES_MOST ? STANDIN_DEVICES_MOST : (int)devices;
}

int standin_old_driver(void) { return standin_setting("OLD_DRIVER", 0) != 0; }

/* What a process asks to learn that its devices are pretended: ctypes.CDLL(None).levelfield_pretended. */
const char *levelfield_pretended(void) { return standin_chip()->key; }

struct entry {
  char *kind, *name;
  unsigned long long count, bytes;
  double flops;
};
static struct entry entries[SLOTS];
static int held;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t place_of(const char *kind, const char *name) {
  size_t hash = 14695981039346656037ull;
  for (const char *c = kind; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
  for (const char *c = name; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
  size_t at = hash % SLOTS;
  while (entries[at].kind && (strcmp(entries[at].kind, kind) || strcmp(entries[at].name, name))) at = (at + 1) % SLOTS;
  return at;
}

/* While a thread is quiet, what it does is not counted: work of a rehearsal that a device would not see. Its copies are
 * moved whole. */
static __thread int quiet;
void standin_quiet(int now) { quiet = now; }
int standin_is_quiet(void) { return quiet; }

/* While there is such a file, each thing that is counted is a line in it: when (the system's clock, in nanoseconds), on
 * which thread, its kind and its name. */
static FILE *calls;
void standin_calls(const char *path) {
  pthread_mutex_lock(&lock);
  if (calls) fclose(calls);
  calls = path && *path ? fopen(path, "w") : NULL;
  pthread_mutex_unlock(&lock);
}

static void note(const char *kind, const char *name) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  fprintf(calls, "%lld %ld %s %s\n", now.tv_sec * 1000000000ll + now.tv_nsec, (long)syscall(SYS_gettid), kind, name);
}

void standin_count(const char *kind, const char *name, unsigned long long bytes, double flops) {
  if (quiet) return;
  pthread_mutex_lock(&lock);
  kind = standin_kind_in_capture(kind, flops);
  if (calls) note(kind, name);
  size_t at = place_of(kind, name);
  if (!entries[at].kind && held >= SLOTS / 2) at = place_of(kind = "books", name = "full: others");
  struct entry *entry = &entries[at];
  if (!entry->kind) entry->kind = strdup(kind), entry->name = strdup(name), held++;
  entry->count++, entry->bytes += bytes, entry->flops += flops;
  pthread_mutex_unlock(&lock);
}

void standin_reset(void) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < SLOTS; i++) free(entries[i].kind), free(entries[i].name);
  memset(entries, 0, sizeof entries);
  held = 0;
  pthread_mutex_unlock(&lock);
  standin_reset_peaks();
}

static void print_text(FILE *file, const char *text) {
  fputc('"', file);
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') fputc('\\', file);
    if ((unsigned char)*text >= 32) fputc(*text, file);
  }
  fputc('"', file);
}

/* A kernel's name as a reader knows it, where the C++ library is here to say it. */
static void print_name(FILE *file, const struct entry *entry) {
  void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
  char *(*demangle)(const char *, char *, size_t *, int *) = library ? dlsym(library, "__cxa_demangle") : NULL;
  int status = 1;
  char *readable = NULL;
  if (demangle && !strcmp(entry->kind, "kernel")) readable = demangle(entry->name, NULL, NULL, &status);
  print_text(file, readable && !status ? readable : entry->name);
  free(readable);
}

/* Write the books as JSON. Returns 0, or -1 if the file cannot be written. */
int standin_dump(const char *path) {
  FILE *file = fopen(path, "w");
  if (!file) return -1;
  int device = standin_current_device;
  pthread_mutex_lock(&lock);
  fprintf(file, "{\"chip\": \"%s\", \"devices\": %d, \"device_bytes\": %zu, \"context_bytes\": %zu,", standin_chip()->key,
          standin_devices(), standin_device_bytes(), standin_context_bytes());
  fprintf(file, " \"used_bytes\": %zu, \"peak_bytes\": %zu,\n\"entries\": [", standin_used_bytes(device),
          standin_peak_bytes(device));
  const char *comma = "";
  for (int i = 0; i < SLOTS; i++) {
    if (!entries[i].kind) continue;
    fprintf(file, "%s\n[\"%s\", ", comma, entries[i].kind);
    print_name(file, &entries[i]);
    fprintf(file, ", %llu, %llu, %.17g]", entries[i].count, entries[i].bytes, entries[i].flops);
    comma = ",";
  }
  pthread_mutex_unlock(&lock);
  fprintf(file, "]}\n");
  return fclose(file) ? -1 : 0;
}

/* A product that a framework computes by a kernel of its own. */
void standin_count_product(const char *words, double flops) { standin_count("product", words, 0, flops); }
