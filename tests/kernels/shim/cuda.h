// Enough of CUDA C++ on clang (Linux) to run the text of a kernel body, tensor-core steps included.
// The kernels keep their inline PTX in a handful of functions; those are written out here lane by
// lane, after the fragment layouts of the PTX manual. Promises and limits are those of lanes.h.
#pragma once
#include "lanes.h"

typedef _Float16 __half;
typedef half2 __half2;
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct Shape {
  int v[8];
  int operator[](int i) const { return v[i]; }
};

inline void __syncthreads(int L = __builtin_LINE()) {
  shim::arrive(shim::cur->g->tg, shim::K_TG, L, true);
}
inline void __syncwarp(int L = __builtin_LINE()) {
  shim::arrive(shim::cur->g->sg[shim::cur->sg], shim::K_SG, L, true);
}
template <class T>
inline T __shfl_xor_sync(uint, T v, int m, int L = __builtin_LINE()) {
  return shim::exchange(v, L)[shim::cur->lane ^ m];
}
template <class T>
inline T __shfl_sync(uint, T v, int l, int L = __builtin_LINE()) {
  return shim::exchange(v, L)[l & 31];
}
inline bool __any_sync(uint, bool c, int L = __builtin_LINE()) {
  return shim::reduce((uint)c, [](uint a, uint b) { return a | b; }, L) != 0;
}

inline float __uint_as_float(uint x) { return std::bit_cast<float>(x); }
inline uint __float_as_uint(float x) { return std::bit_cast<uint>(x); }
inline int __float2int_rn(float x) { return (int)std::rint(x); }
inline float __int2float_rn(int x) { return (float)x; }
inline float2 __half22float2(__half2 h) { return float2{(float)h.x, (float)h.y}; }
inline __half2 __floats2half2_rn(float a, float b) { return __half2{(half)a, (half)b}; }
inline __half2 __hadd2(__half2 a, __half2 b) { return a + b; }
inline __half2 __hsub2(__half2 a, __half2 b) { return a - b; }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return __builtin_elementwise_fma(a, b, c); }
inline uint2 make_uint2(uint a, uint b) { return uint2{a, b}; }
inline float2 make_float2(float a, float b) { return float2{a, b}; }
inline float4 make_float4(float a, float b, float c, float d) { return float4{a, b, c, d}; }
template <class T>
inline T __ldcs(const T* p) {
  if ((uintptr_t)p % sizeof(T)) {
    shim::cur->g->fail("vector load from an address that is not aligned");
    throw shim::Abort{};
  }
  return *p;
}
inline float tq_exp2(float x) { return std::exp2(x); }

// ---- PTX, lane by lane: groups of four lanes, `group` = lane / 4, `quad` = lane % 4
inline uint tq_permute(uint a, uint b, uint s) {
  const ulong bytes = (ulong)b << 32 | a;
  uint d = 0;
  for (int i = 0; i < 4; ++i) {
    const uint pick = s >> (4 * i) & 15, byte = bytes >> (8 * (pick & 7)) & 255;
    d |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
  }
  return d;
}

// 8x8 of 16 bits: lane holds row `group`, columns 2 * quad and 2 * quad + 1
inline uint tq_transpose(uint a, int L = __builtin_LINE()) {
  auto all = shim::exchange(a, L);
  const uint row = shim::cur->lane / 4, column = shim::cur->lane % 4 * 2;
  uint d = 0;
  for (uint k = 0; k < 2; ++k) {
    const uint from = all[(column + k) * 4 + row / 2];
    d |= (from >> (16 * (row & 1)) & 0xffff) << (16 * k);
  }
  return d;
}

struct Fragments {
  uint a[4], b[2];
};

// m16n8k32, u8 x s8: a[r] covers rows group + 8 * (r & 1), columns 4 * quad + 16 * (r / 2);
// b[r] rows 4 * quad + 16 * r, column group; c[r] row group + 8 * (r / 2), column 2 * quad + (r &
// 1)
inline void tq_multiply_bytes(int* c, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1,
                              int L = __builtin_LINE()) {
  auto all = shim::exchange(Fragments{{a0, a1, a2, a3}, {b0, b1}}, L);
  const uint group = shim::cur->lane / 4, quad = shim::cur->lane % 4;
  for (uint r = 0; r < 4; ++r) {
    const uint row = group + 8 * (r / 2), column = 2 * quad + (r & 1);
    for (uint k = 0; k < 32; ++k) {
      const uint q = k % 16 / 4, byte = 8 * (k % 4);
      const uint a = all[row % 8 * 4 + q].a[row / 8 + 2 * (k / 16)] >> byte & 255;
      const int b = (signed char)(all[column * 4 + q].b[k / 16] >> byte & 255);
      c[r] += (int)a * b;
    }
  }
}

// m16n8k16, 16 bits: as above with two columns of a (rows of b) per word instead of four
template <class Z>
inline void multiply_16_bits(float* c, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1, int L) {
  auto all = shim::exchange(Fragments{{a0, a1, a2, a3}, {b0, b1}}, L);
  const uint group = shim::cur->lane / 4, quad = shim::cur->lane % 4;
  auto number = [](uint word, uint k) {
    return (float)std::bit_cast<Z>((ushort)(word >> (16 * (k & 1))));
  };
  for (uint r = 0; r < 4; ++r) {
    const uint row = group + 8 * (r / 2), column = 2 * quad + (r & 1);
    for (uint k = 0; k < 16; ++k) {
      const uint q = k % 8 / 2;
      const float a = number(all[row % 8 * 4 + q].a[row / 8 + 2 * (k / 8)], k);
      const float b = number(all[column * 4 + q].b[k / 8], k);
      c[r] = std::fma(a, b, c[r]);
    }
  }
}
inline void tq_multiply_halves(float* c, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1,
                               int L = __builtin_LINE()) {
  multiply_16_bits<half>(c, a0, a1, a2, a3, b0, b1, L);
}
inline void tq_multiply_bfloats(float* c, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1,
                                int L = __builtin_LINE()) {
  multiply_16_bits<bfloat>(c, a0, a1, a2, a3, b0, b1, L);
}
inline uint tq_less_128(uint a) {
  auto one = [](ushort bits) {
    return (uint)std::bit_cast<ushort>((bfloat)((float)std::bit_cast<bfloat>(bits) - 128.f));
  };
  return one((ushort)a) | one((ushort)(a >> 16)) << 16;
}
