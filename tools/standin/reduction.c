/* Reductions of small messages, in the order of the ranks. */
#include <string.h>

#include "standin.h"

enum { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE };

static float half_to_float(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023, whole;
  float value;
  if (exponent == 0) {
    value = fraction / 16777216.0f;
    return sign ? -value : value;
  }
  whole = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  memcpy(&value, &whole, 4);
  return value;
}

static uint16_t float_to_half(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  uint16_t sign = bits >> 16 & 0x8000;
  uint32_t size = bits & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7e00;
  if (size >= 0x477ff000) return sign | 0x7c00;
  if (size < 0x38800000) {
    float magnitude;
    memcpy(&magnitude, &size, 4);
    float scaled = magnitude * 16777216.0f;
    uint16_t whole = (uint16_t)scaled;
    float rest = scaled - whole;
    return sign | (whole + (rest > 0.5f || (rest == 0.5f && (whole & 1))));
  }
  return sign | ((size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13);
}

static float bfloat_to_float(uint16_t bits) {
  uint32_t whole = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &whole, 4);
  return value;
}

static uint16_t float_to_bfloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 64;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static double read_number(const char *at, int type) {
  float single;
  double number;
  uint16_t short_bits;
  memcpy(&short_bits, at, type == 6 || type == 9 ? 2 : 0);
  if (type == 6) return half_to_float(short_bits);
  if (type == 9) return bfloat_to_float(short_bits);
  if (type == 7) return memcpy(&single, at, 4), single;
  return memcpy(&number, at, 8), number;
}

static void write_number(char *at, int type, double number) {
  float single = (float)number;
  uint16_t bits = type == 6 ? float_to_half(single) : float_to_bfloat(single);
  if (type == 6 || type == 9) memcpy(at, &bits, 2);
  else if (type == 7) memcpy(at, &single, 4);
  else memcpy(at, &number, 8);
}

static int64_t read_integer(const char *at, int type) {
  int64_t whole = 0;
  memcpy(&whole, at, standin_width(type));
  return type == 0 ? (int8_t)whole : type == 2 ? (int32_t)whole : whole;
}

#define COMBINE(a, b, how) \
  (how == PRODUCT ? a * b : how == MAXIMUM ? (a > b ? a : b) : how == MINIMUM ? (a < b ? a : b) : a + b)

static void reduce_number(char *out, const char *parts, int ranks, size_t stride, int type, int how, double factor) {
  double total = read_number(parts, type) * factor;
  for (int rank = 1; rank < ranks; rank++) {
    double next = read_number(parts + rank * stride, type) * factor;
    total = next != next ? next : COMBINE(total, next, how);
  }
  write_number(out, type, how == AVERAGE ? total / ranks : total);
}

static void reduce_integer(char *out, const char *parts, int ranks, size_t stride, int type, int how) {
  int64_t total = read_integer(parts, type);
  for (int rank = 1; rank < ranks; rank++) {
    int64_t next = read_integer(parts + rank * stride, type);
    total = COMBINE(total, next, how);
  }
  if (how == AVERAGE) total /= ranks;
  memcpy(out, &total, standin_width(type));
}

/* Combine the ranks' parts, which lie one after another. factor: of a sum with a factor before it. */
void standin_reduce(char *out, const char *parts, int ranks, size_t count, int type, int reduction, double factor) {
  size_t width = standin_width(type), stride = count * width;
  int how = reduction > AVERAGE ? SUM : reduction;
  for (size_t each = 0; each < count; each++) {
    size_t at = each * width;
    if (type == 6 || type == 7 || type == 8 || type == 9)
      reduce_number(out + at, parts + at, ranks, stride, type, how, factor);
    else reduce_integer(out + at, parts + at, ranks, stride, type, how);
  }
}
