/* nvidia-smi for one question: --query-gpu=FIELDS --format=csv,noheader,nounits. */
#include <stdio.h>
#include <string.h>

#include "standin.h"

static const char *field(const char *name, int device, char *room, size_t most) {
  const struct chip *chip = standin_chip();
  if (!strcmp(name, "index")) snprintf(room, most, "%d", device);
  else if (!strcmp(name, "uuid")) snprintf(room, most, "GPU-%08x-5ca1-ab1e-0000-000000000000", device + 1);
  else if (!strcmp(name, "name")) snprintf(room, most, "%s", chip->name);
  else if (!strcmp(name, "memory.total")) snprintf(room, most, "%zu", standin_device_bytes() >> 20);
  else if (!strcmp(name, "memory.used") || !strcmp(name, "utilization.gpu")) snprintf(room, most, "0");
  else if (!strcmp(name, "power.draw")) snprintf(room, most, "70.00");
  else if (!strcmp(name, "temperature.gpu")) snprintf(room, most, "35");
  else if (!strcmp(name, "mig.mode.current")) snprintf(room, most, chip->major < 8 ? "[N/A]" : "Disabled");
  else if (!strcmp(name, "driver_version")) snprintf(room, most, standin_old_driver() ? "550.54.15" : "580.95.05");
  else snprintf(room, most, "[N/A]");
  return room;
}

static void print_device(const char *fields, int device) {
  char names[1000], room[100], *rest = names;
  snprintf(names, sizeof names, "%s", fields);
  const char *comma = "";
  for (char *name; (name = strsep(&rest, ",")); comma = ", ") printf("%s%s", comma, field(name, device, room, sizeof room));
  printf("\n");
}

int main(int many, char **given) {
  const char *question = "--query-gpu=";
  for (int i = 1; i < many; i++)
    if (!strncmp(given[i], question, strlen(question))) {
      for (int device = 0; device < standin_devices(); device++) print_device(given[i] + strlen(question), device);
      return 0;
    }
  fprintf(stderr, "nvidia-smi of the stand-in: found no --query-gpu=FIELDS; expected it\n");
  return 2;
}
