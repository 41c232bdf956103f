"""Expand everything to ordinary keys and values, in token order, for one prefill attention.

A threadgroup writes 64 tokens of one KV head: a page (decode, turn back, times s, plus mu), or a
piece of the exact zone (copied). Grid: (pages + blocks of exact tokens, KV heads), eight
simdgroups, eight tokens each; lane = N neighbouring dims.
"""

from swiftlm_engine.turboquant.formats import SINK_TOKENS
from swiftlm_engine.turboquant.kernels.dialect import Text

INPUTS = ("kw", "ks", "vw", "vs", "mu", "eq", "ez", "pages", "tokens")
OUTPUTS = ("xk", "xv")

# The exact zone, and the words of the simdgroup's eight tokens.
OPENING = r"""
  const int N = D / 32, hk = by, exact = tokens_shape[0] - 1, count = pages_shape[0] - 1;
  const int capacity = kw_shape[1], segments = mu_shape[1], room = ez_shape[2];
  const int PER_WORD = 32 / KEY_BITS, OWN = N >= PER_WORD ? N / PER_WORD : 1;
  const int VALUE_WORDS = D / 2 + (VALUE_BITS == 3 ? D / 4 : D / 2);
  const long total = (long)count * 64 + exact;
  if (bx >= count) {
    for (int t = (bx - count) * 64 + warp; t < exact && t < (bx - count + 1) * 64; t += 8) {
      const long target = (hk * total + t + (t < SINKS ? 0 : count * 64)) * D;
      for (int d = lane; d < D; d += 32) {
        xk[target + d] = ez[((long)hk * room + t) * D + d];
        xv[target + d] = ez[((long)(ez_shape[1] + hk) * room + t) * D + d];
      }
    }
    return;
  }
  const long at = (long)hk * capacity + bx, vp = (at * 8 + warp) * VALUE_WORDS;
  const long mean = ((long)hk * segments + bx / 8) * D;
  u32 low[N / 2], high[N / 2];
  TQ_UNROLL for (int i = 0; i < N / 2; ++i) {
    const int pair = lane * (N / 2) + i;
    low[i] = vw[vp + pair];
    high[i] = VALUE_BITS == 3 ? vw[vp + D / 2 + pair / 2] >> (2 * (pair & 1))
                              : vw[vp + D / 2 + pair];
  }
  TqRow<8, u32> words[OWN];  // of the eight tokens
  TQ_UNROLL for (int j = 0; j < OWN; ++j) {
    const long word = at * (D / PER_WORD) + lane * N / PER_WORD + j;
    tq_read(words[j], kw + word * 64 + warp * 8);
  }
"""

EXPAND = Text(
    "expand",
    INPUTS,
    OUTPUTS,
    OPENING
    + r"""
  float stretch[N], shift[N];
  TQ_UNROLL for (int i = 0; i < N; ++i) {
    stretch[i] = float(eq[hk * D + lane * N + i]);
    shift[i] = float(mu[mean + lane * N + i]);
  }
  TQ_UNROLL for (int t = 0; t < 8; ++t) {
    const int token = warp * 8 + t;
    const float key_scale = float(ks[at * KEY_SCALARS * 64 + token]) * ROOT;
    const float value_scale = float(vs[at * 64 + token]) * ROOT;
    float k[N], v[N];
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      const int d = lane * N + i;
      const u32 a = low[i / 2] >> (2 * t + 16 * (i & 1));
      const u32 b = VALUE_BITS == 3 ? high[i / 2] >> (4 * (4 * (i & 1) + t / 2) + (t & 1))
                                    : high[i / 2] >> (2 * t + 16 * (i & 1));
      const u32 code = (a & 3u) | ((b & (VALUE_BITS == 3 ? 1u : 3u)) << 2);
      k[i] = tq_signed(tq_key_level(words[i / PER_WORD].v[t], d) * key_scale, 1, d);
      v[i] = tq_signed(V_LEVELS[code] * value_scale, 1, d);
    }
    tq_transform<N>(k, lane);
    tq_transform<N>(v, lane);
    TqRow<N, T> keys, values;
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      keys.v[i] = T(TQ_FMA(tq_signed(k[i], 0, lane * N + i), stretch[i], shift[i]));
      values.v[i] = T(tq_signed(v[i], 0, lane * N + i));
    }
    const long target = (hk * total + SINKS + bx * 64 + token) * D + lane * N;
    tq_store(keys, xk + target);
    tq_store(values, xv + target);
  }
""",
    header=f"#define SINKS {SINK_TOKENS}\n"
    + r"""
#if KEY_BITS == 8
TQ_FN float tq_key_level(u32 word, int d) {
  return float(int((word >> (8 * (d & 3))) & 255u) - 128);
}
#else
TQ_FN float tq_key_level(u32 word, int d) {
  const int n = d & 7;
  const u32 x = (word >> (4 * n)) & 15u;
  if (ORDER == 0) return K_LEVELS[x];
  const u32 negative = (word >> (n < 4 ? 8 * n + 7 : 8 * n - 29)) & 1u;
  return K_LEVELS[negative ? 7u - (x & 7u) : 8u + (x & 7u)];
}
#endif
""",
)
