/* cuBLAS and cuBLASLt: matrix products, counted with their sizes and FLOPs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

struct handle {
  int created, math;
  void *stream;
};
struct layout {
  int type;
  uint64_t rows, columns;
  int batch;
};
struct description {
  int transposed;
};
enum { DESC_TRANSA = 3, LAYOUT_BATCH_COUNT = 5, RESULT_BYTES = 96 };
static char made; /* what a handle that needs no memory of its own points to */

int cublasCreate_v2(void **out) {
  *out = calloc(1, sizeof(struct handle) + 64);
  return 0;
}

int cublasGetMathMode(struct handle *handle, int *mode) {
  *mode = handle->math;
  return 0;
}

int cublasSetMathMode(struct handle *handle, int mode) {
  handle->math = mode;
  return 0;
}

int cublasGetPointerMode_v2(struct handle *handle, int *mode) {
  *mode = 0;
  return 0;
}

static const char *type_name(int type) {
  switch (type) {
    case 0: return "fp32";
    case 1: return "fp64";
    case 2: return "fp16";
    case 14: return "bf16";
    case 28: case 29: return "fp8";
    default: return "other";
  }
}

static int product(int type, long m, long n, long k, long batch) {
  char words[120];
  snprintf(words, sizeof words, "%s m=%ld n=%ld k=%ld batch=%ld", type_name(type), m, n, k, batch);
  standin_alive();
  standin_count("product", words, 0, 2.0 * m * n * k * batch);
  return 0;
}

int cublasSgemm_v2(void *h, int ta, int tb, int m, int n, int k) { return product(0, m, n, k, 1); }
int cublasDgemm_v2(void *h, int ta, int tb, int m, int n, int k) { return product(1, m, n, k, 1); }

int cublasSgemmEx(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int type) {
  return product(type, m, n, k, 1);
}

int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int type) {
  return product(type, m, n, k, 1);
}

int cublasGemmStridedBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int type,
                               int lda, long long sa, const void *b, int type_b, int ldb, long long sb, const void *beta,
                               void *c, int type_c, int ldc, long long sc, int batch) {
  return product(type, m, n, k, batch);
}

int cublasSgemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda,
                              long long sa, const float *b, int ldb, long long sb, const float *beta, float *c, int ldc,
                              long long sc, int batch) {
  return product(0, m, n, k, batch);
}

/* ---- cuBLASLt */
int cublasLtCreate(void **out) {
  *out = &made;
  return 0;
}

int cublasLtMatrixLayoutCreate(struct layout **out, int type, uint64_t rows, uint64_t columns, int64_t step) {
  *out = calloc(1, 64);
  **out = (struct layout){type, rows, columns, 1};
  return 0;
}

int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int attribute, const void *value, size_t bytes) {
  if (attribute == LAYOUT_BATCH_COUNT) memcpy(&layout->batch, value, sizeof layout->batch);
  return 0;
}

int cublasLtMatrixLayoutDestroy(struct layout *layout) {
  free(layout);
  return 0;
}

int cublasLtMatmulDescCreate(struct description **out, int compute, int scale) {
  *out = calloc(1, 64);
  return 0;
}

int cublasLtMatmulDescSetAttribute(struct description *description, int attribute, const void *value, size_t bytes) {
  if (attribute == DESC_TRANSA) memcpy(&description->transposed, value, sizeof description->transposed);
  return 0;
}

int cublasLtMatmulDescDestroy(struct description *description) {
  free(description);
  return 0;
}

int cublasLtMatmulPreferenceCreate(void **out) {
  *out = &made;
  return 0;
}

int cublasLtMatmulPreferenceDestroy(void *preference) { return 0; }

int cublasLtMatmulAlgoGetHeuristic(void *h, void *desc, void *a, void *b, void *c, void *d, void *preference, int wanted,
                                   void *results, int *found) {
  memset(results, 0, RESULT_BYTES);
  *found = 1;
  return 0;
}

int cublasLtMatmul(void *h, struct description *desc, const void *alpha, const void *a, struct layout *la, const void *b,
                   struct layout *lb, const void *beta, const void *c, struct layout *lc, void *d, struct layout *ld) {
  long k = desc->transposed ? la->rows : la->columns;
  return product(la->type, ld->rows, ld->columns, k, ld->batch);
}

size_t cublasLtGetVersion(void) { return 130100; }
