/* The driver's functions that PyTorch and Triton call. Kernels that are loaded here are counted as others are. */
#include <stdlib.h>
#include <string.h>

#include "standin.h"

struct module {
  char kernel[200];
};
static size_t contexts[STANDIN_DEVICES_MOST + 1];

int cuInit(unsigned flags) { return standin_old_driver() ? 803 : 0; }

int cuDriverGetVersion(int *version) {
  *version = standin_old_driver() ? 12040 : 13000;
  return 0;
}

int cuDeviceGetCount(int *count) {
  *count = standin_devices();
  return 0;
}

int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  *active = 1;
  return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = &contexts[device];
  return 0;
}

int cuCtxGetCurrent(void **context) {
  *context = &contexts[standin_current_device];
  return 0;
}

int cuCtxGetDevice(int *device) {
  *device = standin_current_device;
  return 0;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device); /* the same numbers name the same attributes */
int cuDeviceGetAttribute(int *value, int attribute, int device) { return cudaDeviceGetAttribute(value, attribute, device); }

int cuGetErrorString(int error, const char **out) {
  *out = error ? "an error of the stand-in" : "no error";
  return 0;
}

static int load(struct module **out) {
  *out = calloc(1, sizeof **out);
  return 0;
}

int cuModuleLoad(struct module **out, const char *path) { return load(out); }
int cuModuleLoadData(struct module **out, const void *image) { return load(out); }
int cuModuleLoadDataEx(struct module **out, const void *image, unsigned many, void *options, void *values) { return load(out); }

int cuModuleGetFunction(void **out, struct module *module, const char *name) {
  *out = strdup(name);
  return 0;
}

int cuFuncGetAttribute(int *value, int attribute, void *kernel) {
  *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; /* threads, registers; no local memory */
  return 0;
}

static int launch(const char *name) {
  standin_alive();
  standin_count("kernel", name, 0, 0);
  return 0;
}

int cuLaunchKernel(void *kernel) { return launch(kernel); }
int cuLaunchCooperativeKernel(void *kernel) { return launch(kernel); }
int cuLaunchKernelEx(const void *config, void *kernel) { return launch(kernel); }

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *kernel, int threads, size_t shared) {
  *blocks = 2;
  return 0;
}

int cuOccupancyMaxActiveClusters(int *clusters, void *kernel, const void *config) {
  *clusters = standin_chip()->processors / 2;
  return 0;
}

int cuPointerGetAttribute(void *out, int attribute, const void *address) {
  if (attribute == 3) memcpy(out, &address, sizeof address); /* the address on the device */
  else memset(out, 0, 4);
  return standin_device_of(address) < 0;
}
