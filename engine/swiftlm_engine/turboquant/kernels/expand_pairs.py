"""Expand as `expand` does, two tokens to a register: CUDA, four-bit keys, three-bit values.

Codes become fp16 levels by byte permutes, four at a time, and the transform adds two tokens in one
instruction: half as many as in fp32, at an error of 4e-4 where the codec's own is 0.1. Scales,
equaliser and mean are put on in fp32.
"""

from swiftlm_engine.turboquant.formats import SINK_TOKENS
from swiftlm_engine.turboquant.kernels.dialect import Text
from swiftlm_engine.turboquant.kernels.expand import INPUTS, OPENING, OUTPUTS
from swiftlm_engine.turboquant.kernels.tensor import PERMUTE

EXPAND_PAIRS = Text(
    "expand_pairs",
    INPUTS,
    OUTPUTS,
    OPENING
    + r"""
  float stretch[N], shift[N], back[N];
  u32 key_signs[N / 4], value_signs[N];  // of the dims, on bytes and on both halves
  TQ_UNROLL for (int i = 0; i < N; ++i) {
    const int d = lane * N + i;
    stretch[i] = tq_signed(float(eq[hk * D + d]) * ROOT, 0, d);
    shift[i] = float(mu[mean + d]);
    back[i] = tq_signed(ROOT, 0, d);
    const u32 sign = TQ_BITS(tq_signed(0.f, 1, d)) >> 31;
    value_signs[i] = sign * 0x80008000u;
    if (i % 4 == 0) key_signs[i / 4] = 0u;
    key_signs[i / 4] |= sign << (8 * (i % 4) + 7);
  }
  TqRow<4, u32> key_scales, value_scales;  // two tokens a word
  tq_read(key_scales, (const u32*)(ks + at * KEY_SCALARS * 64 + warp * 8));
  tq_read(value_scales, (const u32*)(vs + at * 64 + warp * 8));
  TQ_UNROLL for (int p = 0; p < 4; ++p) {
    const int first = 4 * (p & 1) + p / 2, second = first + 2;  // as the value words pair them
    u32 k[N], v[N];
    TQ_UNROLL for (int c = 0; c < N / 4; ++c) {
      const bool upper = ((lane * N + 4 * c) & 4) != 0;
      const uint2 a = tq_four_keys(words[c / 2].v[first], upper, key_signs[c]);
      const uint2 b = tq_four_keys(words[c / 2].v[second], upper, key_signs[c]);
      k[4 * c] = tq_permute(a.x, b.x, 0x5410u);
      k[4 * c + 1] = tq_permute(a.x, b.x, 0x7632u);
      k[4 * c + 2] = tq_permute(a.y, b.y, 0x5410u);
      k[4 * c + 3] = tq_permute(a.y, b.y, 0x7632u);
    }
    TQ_UNROLL for (int j = 0; j < N / 2; ++j) {
      const u32 codes = ((p < 2 ? low[j] : low[j] >> 2) & 0x33333333u) |
                        (high[j] << (p < 2 ? 2 : 1) & 0x44444444u);
      v[2 * j] = tq_two_values(codes, p & 1) ^ value_signs[2 * j];
      v[2 * j + 1] = tq_two_values(codes >> 16, p & 1) ^ value_signs[2 * j + 1];
    }
    tq_transform_pairs<N>(k, lane);
    tq_transform_pairs<N>(v, lane);
    const float2 ka = tq_halves(key_scales.v[first / 2]), kb = tq_halves(key_scales.v[second / 2]);
    const float2 va = tq_halves(value_scales.v[first / 2]);
    const float2 vb = tq_halves(value_scales.v[second / 2]);
    const float key_scale[2] = {p < 2 ? ka.x : ka.y, p < 2 ? kb.x : kb.y};
    const float value_scale[2] = {p < 2 ? va.x : va.y, p < 2 ? vb.x : vb.y};
    TQ_UNROLL for (int r = 0; r < 2; ++r) {
      TqRow<N, T> keys, values;
      TQ_UNROLL for (int i = 0; i < N; ++i) {
        const float2 x = tq_halves(k[i]), y = tq_halves(v[i]);
        keys.v[i] = T(TQ_FMA(r ? x.y : x.x, stretch[i] * key_scale[r], shift[i]));
        values.v[i] = T((r ? y.y : y.x) * (back[i] * value_scale[r]));
      }
      const int token = warp * 8 + (r ? second : first);
      const long target = (hk * total + SINKS + bx * 64 + token) * D + lane * N;
      tq_store(keys, xk + target);
      tq_store(values, xv + target);
    }
  }
""",
    header=f"#define SINKS {SINK_TOKENS}\n"
    + PERMUTE
    + r"""
TQ_FN float2 tq_halves(u32 x) { return __half22float2(*(__half2*)&x); }

// Four neighbouring nibbles of a key word (signs apart) as fp16 levels: dims 0 and 1, 2 and 3.
TQ_FN uint2 tq_four_keys(u32 word, bool upper, u32 signs) {
  const u32 sizes = (upper ? word >> 16 : word) & 0x7777u;
  const u32 low = tq_permute(K_LOW_0, K_LOW_1, sizes);
  const u32 high = tq_permute(K_HIGH_0, K_HIGH_1, sizes) ^
                   ((upper ? word << 4 : word) & 0x80808080u) ^ signs;
  return make_uint2(tq_permute(low, high, 0x5140u), tq_permute(low, high, 0x7362u));
}

// Two of the four values whose codes are in the lower half of the word.
TQ_FN u32 tq_two_values(u32 codes, int later) {
  return tq_permute(tq_permute(V_LOW_0, V_LOW_1, codes), tq_permute(V_HIGH_0, V_HIGH_1, codes),
                    later ? 0x7362u : 0x5140u);
}

// `tq_transform` of two tokens at once.
template <int N>
TQ_FN void tq_transform_pairs(u32* words, int lane) {
  __half2 x[N];
  TQ_UNROLL for (int i = 0; i < N; ++i) x[i] = *(__half2*)&words[i];
  TQ_UNROLL for (int step = 1; step < N; step *= 2) {
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      if (!(i & step)) {
        const __half2 a = x[i], b = x[i | step];
        x[i] = __hadd2(a, b);
        x[i | step] = __hsub2(a, b);
      }
    }
  }
  TQ_UNROLL for (int step = 1; step < 32; step *= 2) {
    const float one = (lane & step) ? -1.f : 1.f;
    const __half2 sign = __floats2half2_rn(one, one);
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      const u32 other = TQ_XOR(*(u32*)&x[i], step);
      x[i] = __hfma2(x[i], sign, *(__half2*)&other);
    }
  }
  TQ_UNROLL for (int i = 0; i < N; ++i) words[i] = *(u32*)&x[i];
}
""",
)
