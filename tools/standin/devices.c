/* What the devices are. */
#include <stdio.h>
#include <string.h>

#include <driver_types.h>

#include "standin.h"

enum { INSUFFICIENT_DRIVER = 35 };

static int known(int device) { return device >= 0 && device < standin_devices(); }

int cudaGetDeviceCount(int *count) {
  if (standin_old_driver()) return INSUFFICIENT_DRIVER;
  *count = standin_devices();
  return *count ? 0 : cudaErrorNoDevice;
}

int cudaGetDevice(int *device) {
  *device = standin_current_device;
  return 0;
}

int cudaSetDevice(int device) {
  if (!known(device)) return cudaErrorInvalidDevice;
  standin_current_device = device;
  return 0;
}

static void describe_blocks(struct cudaDeviceProp *p, const struct chip *chip) {
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = chip->shared_per_block_optin;
  p->sharedMemPerMultiprocessor = chip->shared_per_processor;
  p->reservedSharedMemPerBlock = chip->major > 7 ? 1024 : 0;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
}

int cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  const struct chip *chip = standin_chip();
  if (!known(device)) return cudaErrorInvalidDevice;
  memset(p, 0, sizeof *p);
  describe_blocks(p, chip);
  snprintf(p->name, sizeof p->name, "%s", chip->name);
  memset(&p->uuid, device + 1, 16);
  p->totalGlobalMem = standin_device_bytes();
  p->totalConstMem = 65536;
  p->major = chip->major;
  p->minor = chip->minor;
  p->multiProcessorCount = chip->processors;
  p->memPitch = 2147483647;
  p->textureAlignment = 512;
  p->pciBusID = 16 + device;
  p->asyncEngineCount = 3;
  p->memoryBusWidth = chip->memory_bus_bits;
  p->l2CacheSize = chip->l2_bytes;
  p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->managedMemory = 1;
  p->streamPrioritiesSupported = p->cooperativeLaunch = p->memoryPoolsSupported = 1;
  p->clusterLaunch = chip->major > 8;
  return 0;
}

int cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  const struct chip *chip = standin_chip();
  switch ((int)attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = 65536; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMultiProcessorCount: *value = chip->processors; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = chip->memory_bus_bits; break;
    case cudaDevAttrL2CacheSize: *value = chip->l2_bytes; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = chip->major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = chip->minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = chip->shared_per_processor; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = chip->shared_per_block_optin; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    default: *value = 1;
  }
  return 0;
}

int cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *at) {
  int device = standin_device_of(at);
  memset(out, 0, sizeof *out);
  out->type = device < 0 ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
  out->device = device < 0 ? -2 : device;
  if (device < 0) out->hostPointer = (void *)at;
  else out->devicePointer = (void *)at;
  return 0;
}

int cudaDeviceCanAccessPeer(int *can, int device, int other) {
  *can = device != other;
  return 0;
}

int cudaDeviceGetPCIBusId(char *out, int length, int device) {
  snprintf(out, length, "0000:%02X:00.0", 16 + device);
  return 0;
}

int cudaDriverGetVersion(int *version) {
  *version = standin_old_driver() ? 12040 : 13000;
  return 0;
}

int cudaRuntimeGetVersion(int *version) {
  *version = 13000;
  return 0;
}

const char *cudaGetErrorString(int error) {
  if (error == cudaErrorMemoryAllocation) return "out of memory";
  if (error == INSUFFICIENT_DRIVER) return "CUDA driver version is insufficient for CUDA runtime version";
  if (error == cudaErrorNoDevice) return "no CUDA-capable device is detected";
  if (error == cudaErrorInvalidDevice) return "invalid device ordinal";
  return error ? "an error of the stand-in" : "no error";
}

const char *cudaGetErrorName(int error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : error ? "cudaErrorUnknown" : "cudaSuccess";
}
