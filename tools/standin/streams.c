/* Streams and events. Work is done when it is launched, so nothing waits here. */
#include <stdlib.h>
#include <time.h>

#include "standin.h"

struct stream {
  int priority;
};
struct event {
  double milliseconds;
  void *stream; /* that it was recorded in */
};

static int new_stream(void **out, int priority) {
  struct stream *stream = calloc(1, 64);
  stream->priority = priority;
  *out = stream;
  return 0;
}

int cudaStreamCreate(void **out) { return new_stream(out, 0); }
int cudaStreamCreateWithFlags(void **out, unsigned flags) { return new_stream(out, 0); }
int cudaStreamCreateWithPriority(void **out, unsigned flags, int priority) { return new_stream(out, priority); }

int cudaStreamGetPriority(struct stream *stream, int *priority) {
  *priority = stream ? stream->priority : 0;
  return 0;
}

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return 0;
}

int cudaStreamSynchronize(void *stream) {
  standin_count("synchronise", "stream", 0, 0);
  return standin_wait_code(stream);
}

int cudaDeviceSynchronize(void) {
  standin_count("synchronise", "device", 0, 0);
  return standin_any_wait_code();
}

int cudaEventSynchronize(struct event *event) {
  standin_count("synchronise", "event", 0, 0);
  return standin_wait_code(event->stream);
}

int cudaEventCreateWithFlags(void **out, unsigned flags) {
  *out = calloc(1, 64);
  return 0;
}

int cudaEventCreate(void **out) { return cudaEventCreateWithFlags(out, 0); }

int cudaEventDestroy(void *event) {
  free(event);
  return 0;
}

int cudaEventRecord(struct event *event, void *stream) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  event->milliseconds = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
  event->stream = stream;
  return 0;
}

int cudaEventRecordWithFlags(struct event *event, void *stream, unsigned flags) { return cudaEventRecord(event, stream); }

int cudaEventElapsedTime(float *milliseconds, struct event *first, struct event *last) {
  *milliseconds = (float)(last->milliseconds - first->milliseconds);
  return 0;
}
