/* Memory that is mapped into reserved addresses: what torch's expandable segments ask the driver for. */
#include <stdlib.h>
#include <sys/mman.h>

#include "standin.h"

enum { OUT_OF_MEMORY = 2 };
typedef unsigned long long address;

struct piece { /* of a device's memory, mapped or not */
  size_t bytes;
  int device;
};
struct place { /* the begin of CUmemAllocationProp */
  int type, handles, location_type, device;
};

int cuMemGetAllocationGranularity(size_t *bytes, const struct place *place, int option) {
  *bytes = (size_t)2 << 20;
  return 0;
}

int cuMemAddressReserve(address *out, size_t bytes, size_t alignment, address wanted, unsigned long long flags) {
  *out = (address)standin_addresses(bytes);
  return 0;
}

int cuMemAddressFree(address at, size_t bytes) { return munmap((void *)at, bytes); }

int cuMemCreate(struct piece **out, size_t bytes, const struct place *place, unsigned long long flags) {
  if (!standin_take_memory(place->device, bytes, bytes)) return OUT_OF_MEMORY;
  *out = malloc(sizeof **out);
  **out = (struct piece){bytes, place->device};
  return 0;
}

int cuMemRelease(struct piece *piece) {
  standin_return_memory(piece->device, piece->bytes);
  free(piece);
  return 0;
}

int cuMemMap(address at, size_t bytes, size_t offset, struct piece *piece, unsigned long long flags) {
  standin_hold((void *)at, bytes, piece->device);
  return 0;
}

/* The range may hold several pieces. */
int cuMemUnmap(address at, size_t bytes) {
  int device;
  for (size_t done = 0, piece; done < bytes && (piece = standin_let_go((void *)(at + done), &device)); done += piece);
  return 0;
}

int cuMemSetAccess(address at, size_t bytes, const void *access, size_t many) { return 0; }
