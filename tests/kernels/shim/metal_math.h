// The Metal functions that our kernels use. Fast maths rounds like libm here.
#pragma once
#include "lanes.h"

namespace metal {
template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));
template <class To, class From>
inline To as_type(From x) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs equal sizes");
  return std::bit_cast<To>(x);
}

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline void threadgroup_barrier(mem_flags f, int L = __builtin_LINE()) {
  shim::arrive(shim::cur->g->tg, shim::K_TG, L, f != mem_flags::mem_none);
}
inline void simdgroup_barrier(mem_flags f, int L = __builtin_LINE()) {
  shim::arrive(shim::cur->g->sg[shim::cur->sg], shim::K_SG, L, f != mem_flags::mem_none);
}

template <class T>
inline T simd_shuffle(T v, ushort l, int L = __builtin_LINE()) {
  return shim::exchange(v, L)[l];
}
template <class T>
inline T simd_shuffle_xor(T v, ushort m, int L = __builtin_LINE()) {
  return shim::exchange(v, L)[shim::cur->lane ^ m];
}
template <class T>
inline T simd_sum(T v, int L = __builtin_LINE()) {
  return shim::reduce(v, [](T a, T b) -> T { return a + b; }, L);
}
template <class T>
inline T simd_max(T v, int L = __builtin_LINE()) {
  return shim::reduce(v, [](T a, T b) -> T { return a > b ? a : b; }, L);
}
inline bool simd_any(bool c, int L = __builtin_LINE()) {
  return shim::reduce((uint)c, [](uint a, uint b) { return a | b; }, L) != 0;
}

inline float fma(float x, float y, float z) { return std::fma(x, y, z); }
inline float rint(float x) { return std::rint(x); }
namespace fast {
inline float exp2(float x) { return std::exp2(x); }
}  // namespace fast
namespace precise {
inline float sqrt(float x) { return std::sqrt(x); }
}  // namespace precise
}  // namespace metal
