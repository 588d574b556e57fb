/* Transformer-engine's fused attention in the place of cuDNN's, which is planned for a real device.
 *
 * These two stand before the functions of the same name in transformer-engine's library. Its Python, and the extension
 * that allocates what they ask for, are the real ones. What is asked for has the shapes of release 2.11, for queries in 16
 * bits. The workspace is an assumption: backward, a float32 gradient of the queries and a sum for each of their rows.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

enum { BYTE = 0, INT64 = 3, FLOAT32 = 4, DATA = 0, LEAST_WORKSPACE = 16 };
struct shape {
  size_t sizes[15], dimensions;
};
struct content {
  void *at;
  int type;
  struct shape shape;
};
struct pack {
  void *tensors[10];
  size_t many;
};

static void *function(const char *name) {
  void *found = dlsym(RTLD_DEFAULT, name);
  if (!found) fprintf(stderr, "stand-in: transformer-engine's library has no %s\n", name), abort();
  return found;
}

static struct shape shape_of(void *tensor) {
  static struct shape (*ask)(void *);
  if (!ask) ask = function("nvte_tensor_shape");
  return ask(tensor);
}

static bool has_data(void *tensor) {
  static void *(*ask)(void *);
  if (!ask) ask = function("nvte_tensor_data");
  return ask(tensor);
}

static void want(void **tensor, int type, struct shape shape) {
  static void (*set)(void **, int, const struct content *);
  struct content content = {NULL, type, shape};
  if (!set) set = function("nvte_set_tensor_param");
  set(tensor, DATA, &content);
}

static size_t rows_of(void *queries) { /* tokens times heads: the last dimension is a head's size */
  struct shape shape = shape_of(queries);
  size_t rows = 1;
  for (size_t i = 0; i + 1 < shape.dimensions; i++) rows *= shape.sizes[i];
  return rows;
}

/* One sum of each row of scores: [batch, heads, length, 1], or [tokens, heads, 1] for sequences of several lengths. */
static struct shape sums(void *queries, void *starts, size_t length) {
  struct shape shape = shape_of(queries);
  size_t heads = shape.sizes[shape.dimensions - 2];
  if (shape.dimensions == 3) return (struct shape){{shape.sizes[0], heads, 1}, 3};
  return (struct shape){{shape_of(starts).sizes[0] - 1, heads, length, 1}, 4};
}

static void launch(const char *name) {
  standin_alive();
  standin_count("kernel", name, 0, 0);
}

/* Each is called twice: without a workspace it says what it wants, with one it runs. */
void nvte_fused_attn_fwd(void *queries, void *keys, void *values, void *bias, void *offset, void *scores, void *out,
                         struct pack *kept, void *starts, void *key_starts, void *padded, void *key_padded, void *pages,
                         void *value_pages, void *random, size_t length, size_t key_length, bool training, bool logit,
                         bool graph, float scale, float dropout, int layout, int bias_type, int mask, int softmax,
                         int64_t left, int64_t right, void *workspace, void *stream) {
  if (has_data(workspace)) return launch("transformer-engine's cudnn attention, forward");
  if (training && !kept->many) {
    want(&kept->tensors[kept->many++], FLOAT32, sums(queries, starts, length));
    if (logit) want(&kept->tensors[kept->many++], FLOAT32, sums(queries, starts, length));
    want(&kept->tensors[kept->many++], INT64, (struct shape){{2}, 1});
  }
  want(&workspace, BYTE, (struct shape){{LEAST_WORKSPACE}, 1});
}

void nvte_fused_attn_bwd(void *queries, void *keys, void *values, void *out, void *given, void *scores, void *their,
                         struct pack *kept, void *of_queries, void *of_keys, void *of_values, void *of_bias,
                         void *of_offset, void *starts, void *key_starts, void *padded, void *key_padded, size_t length,
                         size_t key_length, float scale, float dropout, int layout, int bias_type, int mask, int softmax,
                         int64_t left, int64_t right, bool deterministic, bool graph, void *workspace, void *stream) {
  if (has_data(workspace)) return launch("transformer-engine's cudnn attention, backward");
  struct shape shape = shape_of(queries);
  size_t size = shape.sizes[shape.dimensions - 1];
  want(&workspace, BYTE, (struct shape){{4 * rows_of(queries) * (size + 1)}, 1});
}
