"""Decode over pages with tensor cores: CUDA, four-bit keys, three-bit values, up to eight heads.

Every warp owns tiles of 32 tokens; no barrier inside the loop. Keys: 16 tokens x 32 dims of 8-bit
levels times a query in two 8-bit halves (exact in int32), heads in N = 8. Weights go from the
accumulator to the operand layout by a register transpose. Values are decoded by byte permutes
straight into the fp16 operand. The maximum is refreshed only when a logit exceeds it by 2^6, as
fp16 weights allow.
"""

from swiftlm_engine.turboquant.kernels.dialect import Text
from swiftlm_engine.turboquant.kernels.exact import EXACT
from swiftlm_engine.turboquant.kernels.scalar import INPUTS, OUTPUTS

PERMUTE = r"""
#ifndef TQ_EMULATED
TQ_FN u32 tq_permute(u32 a, u32 b, u32 s) {
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(s));
  return d;
}
#endif
"""
# Not where lanes are emulated.
MULTIPLY_HALVES = r"""
TQ_FN void tq_multiply_halves(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}"""

_HEADER = (
    PERMUTE
    + r"""
#ifndef TQ_EMULATED
TQ_FN u32 tq_transpose(u32 a) {
  u32 d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}
TQ_FN void tq_multiply_bytes(int* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}"""
    + MULTIPLY_HALVES
    + r"""
#endif
TQ_FN u32 tq_pair(float a, float b) {
  __half2 h = __floats2half2_rn(a, b);
  return *(u32*)&h;
}
TQ_FN float2 tq_split(u32 a) { return __half22float2(*(__half2*)&a); }
TQ_FN uint4 tq_load4(const u32* p) { return __ldcs((const uint4*)p); }
TQ_FN uint2 tq_load2(const u32* p) { return __ldcs((const uint2*)p); }
"""
)

TENSOR = Text(
    "tensor",
    INPUTS,
    OUTPUTS,
    r"""
  constexpr int N = D / 32, HALF_BLOCKS = D / 64, STRIDE = D + 8, VALUE_WORDS = 3 * D / 4;
  const int group = lane >> 2, quad = lane & 3;
  __shared__ float tops[NW * 8], weights[NW * 8], coefficient[8], offsets[32 * 8];
  __shared__ int sums[8];
  __shared__ __align__(16) float room[(NW > 1 ? NW / 2 : 1) * 8 * D];
  __shared__ __align__(16) char query[16 * STRIDE];  // high bytes of 8 heads, then low bytes
  const int row = by * G, hk = by / GB, capacity = kw_shape[1], segments = mu_shape[1];
  const int zones = pages_shape[1] - 1;
"""
    + EXACT
    + r"""
  const int tiles = (pages_shape[0] - 1) * 2, split = bx - zones, splits = nbx - zones;
  const int t0 = tiles * split / splits, t1 = tiles * (split + 1) / splits;
  const int segment0 = t0 / 16, some = t1 > t0 ? (t1 - 1) / 16 - segment0 + 1 : 0;
  const long base = (long)hk * capacity;
  const u32* keys = kw + base * (8 * D) + 4 * group + quad * 64;
  const u32* values = vw + base * (6 * D) + quad * VALUE_WORDS;
  const __half* key_scales = (const __half*)ks + base * (KEY_SCALARS * 64) + 4 * group;
  const __half* value_scales = (const __half*)vs + base * 64 + 4 * group;
  uint4 kr[N], low[HALF_BLOCKS];
  uint2 high[HALF_BLOCKS], key_scale, value_scale;
#define TQ_LOAD_KEYS(t)                                                                     \
  {                                                                                         \
    const u32* p = keys + (long)((t) >> 1) * (8 * D) + ((t) & 1) * 32;                      \
    TQ_UNROLL for (int j = 0; j < N; ++j) kr[j] = tq_load4(p + j * 256);                      \
    key_scale = tq_load2(                                                                   \
        (const u32*)(key_scales + (long)((t) >> 1) * (KEY_SCALARS * 64) + ((t) & 1) * 32)); \
  }
#define TQ_LOAD_VALUES(t)                                          \
  {                                                                \
    const u32* p = values + (long)(t) * (3 * D);                   \
    TQ_UNROLL for (int c = 0; c < HALF_BLOCKS; ++c) {                \
      low[c] = tq_load4(p + 4 * (group + 8 * c));                  \
      high[c] = tq_load2(p + D / 2 + 2 * (group + 8 * c));         \
    }                                                              \
    value_scale = tq_load2((const u32*)(value_scales + (t) * 32)); \
  }
  int t = t0 + warp;
  if (t < t1) {
    TQ_LOAD_KEYS(t);
    TQ_LOAD_VALUES(t);
  }

  for (int g = warp; g < 8; g += NW) {
    float x[N], top = 1e-20f;
    TQ_UNROLL for (int i = 0; i < N; ++i) x[i] = 0.f;
    if (g < G) tq_turn_query<N>(q + (row + g) * D, eq + hk * D, x, lane);
    TQ_UNROLL for (int i = 0; i < N; ++i) top = fmaxf(top, fabsf(x[i]));
    top = tq_max(top);
    const float unit = 16256.f / top;
    int sum = 0;
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      const int v = __float2int_rn(x[i] * unit), upper = (v + 64) >> 7;
      sum += v;
      query[g * STRIDE + lane * N + i] = (char)upper;
      query[(8 + g) * STRIDE + lane * N + i] = (char)(v - (upper << 7));
    }
    TQ_UNROLL for (int step = 1; step < 32; step *= 2) sum += TQ_XOR(sum, step);
    if (lane == 0) {
      coefficient[g] = SCALE * top / 16256.f * K_STEP;
      sums[g] = sum;
    }
  }
  for (int n = warp; n < some * 8; n += NW) {
    const int g = n & 7;
    float dot = 0.f;
    if (g < G)
      dot = tq_offset(q + (row + g) * D, mu + ((long)hk * segments + segment0 + n / 8) * D, lane);
    if (lane == 0) offsets[n] = dot;
  }
  __syncthreads();
  u32 qb[N][4];
  TQ_UNROLL for (int j = 0; j < N; ++j) {
    const uint2 h = *(const uint2*)(query + group * STRIDE + 8 * (quad + 4 * j));
    const uint2 l = *(const uint2*)(query + (8 + group) * STRIDE + 8 * (quad + 4 * j));
    qb[j][0] = h.x;
    qb[j][1] = h.y;
    qb[j][2] = l.x;
    qb[j][3] = l.y;
  }
  const float cf0 = coefficient[2 * quad], cf1 = coefficient[2 * quad + 1];
  const int qs0 = sums[2 * quad], qs1 = sums[2 * quad + 1];
  float m0 = -1e30f, m1 = -1e30f, l0 = 0.f, l1 = 0.f;
  float acc[HALF_BLOCKS * 4][4];
  TQ_UNROLL for (int i = 0; i < HALF_BLOCKS * 4; ++i) {
    TQ_UNROLL for (int r = 0; r < 4; ++r) acc[i][r] = 0.f;
  }
  for (; t < t1; t += NW) {
    const int next = t + NW;
    int ch[2][4], cl[2][4];
    TQ_UNROLL for (int i = 0; i < 2; ++i) {
      TQ_UNROLL for (int r = 0; r < 4; ++r) {
        ch[i][r] = 0;
        cl[i][r] = -127 * ((r & 1) ? qs1 : qs0);
      }
    }
    TQ_UNROLL for (int j = 0; j < N; ++j) {
      const u32 ws[4] = {kr[j].x, kr[j].y, kr[j].z, kr[j].w};
      u32 lo[4], hi[4];  // magnitude by permute, sign as all ones: level 128 + m, or its complement
      TQ_UNROLL for (int i = 0; i < 4; ++i) {
        const u32 size = ws[i] & 0x77777777u;
        lo[i] = tq_permute(K_BYTES_0, K_BYTES_1, size) ^ tq_permute(ws[i], 0u, 0xBA98u);
        hi[i] = tq_permute(K_BYTES_0, K_BYTES_1, size >> 16) ^ tq_permute(ws[i] << 4, 0u, 0xBA98u);
      }
      TQ_UNROLL for (int i = 0; i < 2; ++i) {
        tq_multiply_bytes(ch[i], lo[2 * i], lo[2 * i + 1], hi[2 * i], hi[2 * i + 1], qb[j][0],
                          qb[j][1]);
        tq_multiply_bytes(cl[i], lo[2 * i], lo[2 * i + 1], hi[2 * i], hi[2 * i + 1], qb[j][2],
                          qb[j][3]);
      }
    }
    float s[2][4];
    TQ_UNROLL for (int i = 0; i < 2; ++i) {
      TQ_UNROLL for (int r = 0; r < 4; ++r) {
        s[i][r] = __int2float_rn(ch[i][r] * 128 + cl[i][r]) - 0.5f * (float)((r & 1) ? qs1 : qs0);
      }
    }
    const float2 ga = tq_split(key_scale.x), gb = tq_split(key_scale.y);
    const float2 va = tq_split(value_scale.x), vb = tq_split(value_scale.y);
    const float2 mean = *(const float2*)(offsets + ((t >> 4) - segment0) * 8 + 2 * quad);
    if (next < t1) TQ_LOAD_KEYS(next);
    s[0][0] = fmaf(s[0][0], ga.x * cf0, mean.x);
    s[0][1] = fmaf(s[0][1], ga.x * cf1, mean.y);
    s[0][2] = fmaf(s[0][2], ga.y * cf0, mean.x);
    s[0][3] = fmaf(s[0][3], ga.y * cf1, mean.y);
    s[1][0] = fmaf(s[1][0], gb.x * cf0, mean.x);
    s[1][1] = fmaf(s[1][1], gb.x * cf1, mean.y);
    s[1][2] = fmaf(s[1][2], gb.y * cf0, mean.x);
    s[1][3] = fmaf(s[1][3], gb.y * cf1, mean.y);
    float x0 = fmaxf(fmaxf(s[0][0], s[0][2]), fmaxf(s[1][0], s[1][2]));
    float x1 = fmaxf(fmaxf(s[0][1], s[0][3]), fmaxf(s[1][1], s[1][3]));
    if (TQ_ANY(x0 > m0 + 6.f || x1 > m1 + 6.f)) {
      TQ_UNROLL for (int step = 4; step < 32; step *= 2) {
        x0 = fmaxf(x0, TQ_XOR(x0, step));
        x1 = fmaxf(x1, TQ_XOR(x1, step));
      }
      x0 = fmaxf(x0, m0);
      x1 = fmaxf(x1, m1);
      const float r0 = TQ_EXP2(m0 - x0), r1 = TQ_EXP2(m1 - x1);
      m0 = x0;
      m1 = x1;
      l0 *= r0;
      l1 *= r1;
      TQ_UNROLL for (int i = 0; i < HALF_BLOCKS * 4; ++i) {
        acc[i][0] *= r0;
        acc[i][1] *= r1;
        acc[i][2] *= r0;
        acc[i][3] *= r1;
      }
    }
    u32 pf[4];
    const float gv[4] = {va.x, va.y, vb.x, vb.y};
    TQ_UNROLL for (int i = 0; i < 4; ++i) {
      const float p0 = TQ_EXP2(s[i >> 1][2 * (i & 1)] - m0);
      const float p1 = TQ_EXP2(s[i >> 1][2 * (i & 1) + 1] - m1);
      l0 += p0;
      l1 += p1;
      pf[i] = tq_transpose(tq_pair(fminf(p0 * gv[i], 65504.f), fminf(p1 * gv[i], 65504.f)));
    }
    TQ_UNROLL for (int c = 0; c < HALF_BLOCKS; ++c) {
      const u32 ws[4] = {low[c].x, low[c].y, low[c].z, low[c].w};
      TQ_UNROLL for (int i = 0; i < 4; ++i) {
        const u32 w = i < 2 ? high[c].x : high[c].y;  // selectors: four codes per half word
        const u32 even = (ws[i] & 0x33333333u) | (((i & 1) ? w : w << 2) & 0x44444444u);
        const u32 odd = ((ws[i] >> 2) & 0x33333333u) | (((i & 1) ? w >> 1 : w << 1) & 0x44444444u);
        const u32 eh = tq_permute(V_HIGH_0, V_HIGH_1, even),
                  el = tq_permute(V_LOW_0, V_LOW_1, even);
        const u32 fh = tq_permute(V_HIGH_0, V_HIGH_1, even >> 16),
                  fl = tq_permute(V_LOW_0, V_LOW_1, even >> 16);
        const u32 oh = tq_permute(V_HIGH_0, V_HIGH_1, odd), ol = tq_permute(V_LOW_0, V_LOW_1, odd);
        const u32 rh = tq_permute(V_HIGH_0, V_HIGH_1, odd >> 16),
                  rl = tq_permute(V_LOW_0, V_LOW_1, odd >> 16);
        float* a = acc[c * 4 + i];
        tq_multiply_halves(a, tq_permute(el, eh, 0x6240u), tq_permute(fl, fh, 0x6240u),
                           tq_permute(ol, oh, 0x6240u), tq_permute(rl, rh, 0x6240u), pf[0], pf[1]);
        tq_multiply_halves(a, tq_permute(el, eh, 0x7351u), tq_permute(fl, fh, 0x7351u),
                           tq_permute(ol, oh, 0x7351u), tq_permute(rl, rh, 0x7351u), pf[2], pf[3]);
      }
    }
    if (next < t1) TQ_LOAD_VALUES(next);
  }

  TQ_UNROLL for (int step = 4; step < 32; step *= 2) {
    l0 += TQ_XOR(l0, step);
    l1 += TQ_XOR(l1, step);
  }
  if (group == 0) {
    tops[warp * 8 + 2 * quad] = m0;
    tops[warp * 8 + 2 * quad + 1] = m1;
    weights[warp * 8 + 2 * quad] = l0;
    weights[warp * 8 + 2 * quad + 1] = l1;
  }
  __syncthreads();
  const long out = ((long)by * nbx + bx) * G;
  float top0 = -1e30f, top1 = -1e30f;
  TQ_UNROLL for (int w = 0; w < NW; ++w) {
    top0 = fmaxf(top0, tops[w * 8 + 2 * quad]);
    top1 = fmaxf(top1, tops[w * 8 + 2 * quad + 1]);
  }
  const float r0 = TQ_EXP2(m0 - top0), r1 = TQ_EXP2(m1 - top1);
  TQ_UNROLL for (int i = 0; i < HALF_BLOCKS * 4; ++i) {
    acc[i][0] *= r0;
    acc[i][1] *= r1;
    acc[i][2] *= r0;
    acc[i][3] *= r1;
  }
  if (warp == 0 && lane < G) {
    float highest = -1e30f, total = 0.f;
    for (int w = 0; w < NW; ++w) highest = fmaxf(highest, tops[w * 8 + lane]);
    for (int w = 0; w < NW; ++w)
      total += weights[w * 8 + lane] * TQ_EXP2(tops[w * 8 + lane] - highest);
    *(float2*)(part + (out + lane) * ROW + D) = make_float2(highest, total);
  }
  TQ_UNROLL for (int n = NW / 2; n > 0; n /= 2) {
    float4* room4 = (float4*)room;
    if (warp >= n && warp < 2 * n) {
      TQ_UNROLL for (int i = 0; i < HALF_BLOCKS * 4; ++i) {
        room4[((warp - n) * HALF_BLOCKS * 4 + i) * 32 + lane] =
            make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
      }
    }
    __syncthreads();
    if (warp < n) {
      TQ_UNROLL for (int i = 0; i < HALF_BLOCKS * 4; ++i) {
        const float4 y = room4[(warp * HALF_BLOCKS * 4 + i) * 32 + lane];
        acc[i][0] += y.x;
        acc[i][1] += y.y;
        acc[i][2] += y.z;
        acc[i][3] += y.w;
      }
    }
    if (n > 1) __syncthreads();
  }
  if (warp == 0) {
    TQ_UNROLL for (int i = 0; i < HALF_BLOCKS * 4; ++i) {
      const int d = 8 * (group + 8 * (i >> 2)) + 2 * (i & 3);
      if (2 * quad < G)
        *(float2*)(part + (out + 2 * quad) * ROW + d) = make_float2(acc[i][0], acc[i][2]);
      if (2 * quad + 1 < G)
        *(float2*)(part + (out + 2 * quad + 1) * ROW + d) = make_float2(acc[i][1], acc[i][3]);
    }
  }
""",
    header=_HEADER,
)
