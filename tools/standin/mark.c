/* A rank of a run writes into its events that its devices are pretended, before the run's own code can write any. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

/* Copy the text of the key `events_dir` of job.json. Returns 0 where it has none. */
static int events_folder(const char *path, char *out, size_t room) {
  char text[1 << 16];
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  char *at = strstr(text, "\"events_dir\""), *from = at ? strchr(at + 12, '"') : NULL, *to = from ? strchr(from + 1, '"') : NULL;
  if (!to || (size_t)(to - from) > room) return 0;
  *to = 0;
  strcpy(out, from + 1);
  return 1;
}

__attribute__((constructor)) static void mark(void) {
  char folder[4096], path[4200];
  const char *job = getenv("LEVELFIELD_JOB"), *rank = getenv("RANK");
  if (!job || !rank || !events_folder(job, folder, sizeof folder)) return;
  snprintf(path, sizeof path, "%s/rank%d.jsonl", folder, atoi(rank));
  FILE *file = fopen(path, "a");
  if (!file) return;
  fprintf(file, "{\"event\":\"pretended\",\"chip\":\"%s\"}\n", standin_chip()->name);
  fclose(file);
}
