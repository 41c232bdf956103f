// Enough of the Metal Shading Language on clang (C++20, Linux) to run the text of a kernel body.
// simdgroup_matrix is spread over the lanes in Apple's layout, two elements a lane. With
// -DSHIM_SPACES=1 device, constant and threadgroup are real address spaces, for a syntax-only
// check. Not promised: rounding of fast maths, speed, textures, atomics.
#pragma once
#include "metal_math.h"

namespace metal {
// 8x8 simdgroup matrices: lane l holds row fm, columns fn and fn+1
template <class T, int R, int C>
struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "Metal has 8x8 only");
  vec<T, 2> e;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diag) {
    const uint l = shim::cur->lane;
    const uint r = (l / 4 & 4) + l / 2 % 4, c = (l / 4 & 2) * 2 + l % 2 * 2;
    e[0] = r == c ? diag : T(0);
    e[1] = r == c + 1 ? diag : T(0);
  }
  vec<T, 2>& thread_elements() { return e; }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;
template <class T, int R, int C>
inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, R, C> m;
  m.e[0] = v;
  m.e[1] = v;
  return m;
}
namespace detail {
inline uint mrow() {
  const uint l = shim::cur->lane;
  return (l / 4 & 4) + l / 2 % 4;
}
inline uint mcol() {
  const uint l = shim::cur->lane;
  return (l / 4 & 2) * 2 + l % 2 * 2;
}
}  // namespace detail
template <class T, class P>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, P p, ulong stride = 8,
                           ulong2 o = ulong2{0, 0}, bool tr = false, int L = __builtin_LINE()) {
  shim::exchange(0u, L);
  p += o.y * stride + o.x;  // origin (column, row)
  for (uint k = 0; k < 2; ++k) {
    const uint r = detail::mrow(), c = detail::mcol() + k;
    d.e[k] = (T)(tr ? p[c * stride + r] : p[r * stride + c]);
  }
}
template <class T, class P>
inline void simdgroup_store(simdgroup_matrix<T, 8, 8> d, P p, ulong stride = 8,
                            ulong2 o = ulong2{0, 0}, bool tr = false, int L = __builtin_LINE()) {
  shim::exchange(0u, L);
  p += o.y * stride + o.x;
  for (uint k = 0; k < 2; ++k) {
    const uint r = detail::mrow(), c = detail::mcol() + k;
    (tr ? p[c * stride + r] : p[r * stride + c]) = d.e[k];
  }
}
template <class TD, class TA, class TB, class TC>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<TD, 8, 8>& d,
                                          simdgroup_matrix<TA, 8, 8> a,
                                          simdgroup_matrix<TB, 8, 8> b,
                                          simdgroup_matrix<TC, 8, 8> c, int L = __builtin_LINE()) {
  float4 v;
  v[0] = (float)a.e[0];
  v[1] = (float)a.e[1];
  v[2] = (float)b.e[0];
  v[3] = (float)b.e[1];
  auto s = shim::exchange(v, L);
  auto own = [](uint r, uint c) {
    return (r & 4) * 4 + (c & 4) * 2 + (r & 3) * 2 + (c >> 1 & 1);
  };  // lane that holds (r, c)
  for (uint k = 0; k < 2; ++k) {
    const uint r = detail::mrow(), cc = detail::mcol() + k;
    float acc = (float)c.e[k];
    for (uint i = 0; i < 8; ++i)
      acc = std::fma(s[own(r, i)][i & 1], s[own(i, cc)][2 + (cc & 1)], acc);
    d.e[k] = (TD)acc;
  }
}
template <class T>
inline void simdgroup_multiply(simdgroup_matrix<T, 8, 8>& d, simdgroup_matrix<T, 8, 8> a,
                               simdgroup_matrix<T, 8, 8> b, int L = __builtin_LINE()) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<T, 8, 8>(T(0)), L);
}
}  // namespace metal

// ---- from here on: words of the language. No standard header may follow.
#define METAL_FUNC inline __attribute__((always_inline))
#define float2(...) shim::make<float2>(__VA_ARGS__)
#define float3(...) shim::make<float3>(__VA_ARGS__)
#define float4(...) shim::make<float4>(__VA_ARGS__)
#define half2(...) shim::make<half2>(__VA_ARGS__)
#define half3(...) shim::make<half3>(__VA_ARGS__)
#define half4(...) shim::make<half4>(__VA_ARGS__)
#define uint2(...) shim::make<uint2>(__VA_ARGS__)
#define uint3(...) shim::make<uint3>(__VA_ARGS__)
#define uint4(...) shim::make<uint4>(__VA_ARGS__)
#define int2(...) shim::make<int2>(__VA_ARGS__)
#define int4(...) shim::make<int4>(__VA_ARGS__)
#define ushort2(...) shim::make<ushort2>(__VA_ARGS__)
#define ushort4(...) shim::make<ushort4>(__VA_ARGS__)
#define uchar4(...) shim::make<uchar4>(__VA_ARGS__)
#define ulong2(...) shim::make<ulong2>(__VA_ARGS__)
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.693147180559945309417f
#if SHIM_SPACES
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant const
#define threadgroup
#endif
#define thread
#define kernel
