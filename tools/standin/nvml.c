/* NVML as vendors/nvidia asks it: idle devices of the chosen chip. A library of its own, libnvidia-ml.so.1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "standin.h"

enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3 };
#define IDLE_WATTS 70
static int numbers[STANDIN_DEVICES_MOST];

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { return error ? "an error of the stand-in" : "no error"; }

static int say(char *out, unsigned room, const char *text) {
  snprintf(out, room, "%s", text);
  return 0;
}

int nvmlSystemGetDriverVersion(char *out, unsigned room) {
  return say(out, room, standin_old_driver() ? "550.54.15" : "580.95.05");
}

int nvmlSystemGetNVMLVersion(char *out, unsigned room) {
  return say(out, room, standin_old_driver() ? "12.550.54.15" : "13.580.95.05");
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = standin_old_driver() ? 12040 : 13000;
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = standin_devices();
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, int **device) {
  if (index >= (unsigned)standin_devices()) return INVALID_ARGUMENT;
  numbers[index] = index;
  *device = &numbers[index];
  return 0;
}

/* As CUDA names a device: domain, bus, device. The bus is 16 and the index (devices.c). */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, int **device) {
  unsigned domain, number;
  if (sscanf(bus, "%x:%x", &domain, &number) != 2) return INVALID_ARGUMENT;
  return nvmlDeviceGetHandleByIndex_v2(number - 16, device);
}

/* No fabric joins the devices of several machines: all behind the struct's version is zero. */
int nvmlDeviceGetGpuFabricInfoV(int *device, unsigned *info) {
  memset(info + 1, 0, 28);
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses(int *device, unsigned *many, void *out) {
  *many = 0;
  return 0;
}

int nvmlDeviceGetIndex(int *device, unsigned *index) {
  *index = *device;
  return 0;
}

int nvmlDeviceGetUUID(int *device, char *out, unsigned room) {
  snprintf(out, room, "GPU-%08x-5ca1-ab1e-0000-000000000000", *device + 1);
  return 0;
}

int nvmlDeviceGetName(int *device, char *out, unsigned room) { return say(out, room, standin_chip()->name); }
int nvmlDeviceGetVbiosVersion(int *device, char *out, unsigned room) { return say(out, room, "00.00.00.00.00"); }

struct memory {
  unsigned long long whole, free, used;
};

int nvmlDeviceGetMemoryInfo(int *device, struct memory *memory) {
  memory->whole = standin_device_bytes();
  memory->used = 0;
  memory->free = memory->whole;
  return 0;
}

int nvmlDeviceGetMigMode(int *device, unsigned *current, unsigned *next) {
  if (standin_chip()->major < 8) return NOT_SUPPORTED;
  *current = *next = 0;
  return 0;
}

int nvmlDeviceGetPowerUsage(int *device, unsigned *milliwatts) {
  *milliwatts = IDLE_WATTS * 1000;
  return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(int *device, unsigned long long *millijoules) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *millijoules = (now.tv_sec * 1000ull + now.tv_nsec / 1000000) * IDLE_WATTS;
  return 0;
}

int nvmlDeviceGetUtilizationRates(int *device, unsigned rates[2]) {
  rates[0] = rates[1] = 0;
  return 0;
}

int nvmlDeviceGetTemperature(int *device, int sensor, unsigned *celsius) {
  *celsius = 35;
  return 0;
}

struct temperature {
  unsigned version;
  int sensor, celsius;
};

int nvmlDeviceGetTemperatureV(int *device, struct temperature *temperature) {
  temperature->celsius = 35;
  return 0;
}
