/* CUDA graphs: what a stream launches while it is captured is counted as "captured", and a launch of the graph as one. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

#define CAPTURE_UNSUPPORTED 900 /* cudaErrorStreamCaptureUnsupported */

struct graph {
  unsigned long long nodes;
  double flops;
};
static struct graph *captured; /* one capture at a time */
static void *capturing;        /* its stream */
static unsigned long long captures;

static const char *const work[] = {"kernel", "product", "memset", "copy"};

/* The kind to count `kind` as. Every thread's work counts: autograd's has a thread of its own. */
const char *standin_kind_in_capture(const char *kind, double flops) {
  if (!captured) return kind;
  for (size_t i = 0; i < sizeof work / sizeof *work; i++) {
    if (strcmp(kind, work[i])) continue;
    captured->nodes++, captured->flops += flops;
    return "captured";
  }
  return kind;
}

/* Waiting for the work of a stream that is captured is refused, as there is none yet. */
int standin_wait_code(const void *stream) { return captured && stream == capturing ? CAPTURE_UNSUPPORTED : 0; }
int standin_any_wait_code(void) { return captured ? CAPTURE_UNSUPPORTED : 0; }

int cudaStreamBeginCapture(void *stream, int mode) {
  if (captured || !stream) return CAPTURE_UNSUPPORTED; /* the default stream cannot be captured */
  captured = calloc(1, sizeof *captured);
  capturing = stream, captures++;
  return 0;
}

int cudaStreamEndCapture(void *stream, struct graph **graph) {
  if (!captured || stream != capturing) return CAPTURE_UNSUPPORTED;
  *graph = captured;
  captured = NULL, capturing = NULL;
  return 0;
}

int cudaStreamIsCapturing(void *stream, int *status) {
  *status = captured && stream == capturing;
  return 0;
}

int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph, void **nodes, void **edges,
                             size_t *many) {
  int active = captured && stream == capturing;
  if (status) *status = active;
  if (id) *id = active ? captures : 0;
  if (graph) *graph = active ? captured : NULL;
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (many) *many = 0;
  return 0;
}

int cudaGraphGetNodes(struct graph *graph, void *nodes, size_t *many) {
  *many = graph->nodes;
  return 0;
}

int cudaGraphInstantiateWithFlags(struct graph **executable, struct graph *graph, unsigned long long flags) {
  *executable = malloc(sizeof *graph);
  **executable = *graph;
  return 0;
}

int cudaGraphLaunch(struct graph *executable, void *stream) {
  standin_count("graph", "launch", executable->nodes, executable->flops);
  return 0;
}

int cudaGraphDestroy(struct graph *graph) {
  free(graph);
  return 0;
}

int cudaGraphExecDestroy(struct graph *executable) {
  free(executable);
  return 0;
}
