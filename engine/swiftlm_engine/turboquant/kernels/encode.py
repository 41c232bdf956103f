"""Encode one page (64 tokens of one KV head) per threadgroup: smooth, rotate, quantise, pack.

Eight simdgroups, one octet of tokens each; lane = D / 32 dims. `first` (its length minus one) is
the page number that the first threadgroup encodes; its tokens start behind the sinks in the exact
zone. Input is cleaned as the plain codec cleans it: NaN is zero, everything else fits fp16.
"""

from swiftlm_engine.turboquant.kernels.dialect import Text

ENCODE = Text(
    "encode",
    ("ez", "mu", "eq", "first"),
    ("kw", "ks", "vw", "vs"),
    r"""
  const int N = D / 32, hk = by, page = bx, capacity = ez_shape[2], segments = mu_shape[1];
  const int PER_WORD = 32 / KEY_BITS, OWN = N >= PER_WORD ? N / PER_WORD : 1;
  const int VALUE_WORDS = D / 2 + (VALUE_BITS == 3 ? D / 4 : D / 2);
  const int UNITS = N >= 4 ? N / 4 : 1;
  const long at = (long)hk * nbx + page;
  const long source = ((long)hk * capacity + SINKS + page * 64 + warp * 8) * D + lane * N;
  const long values = source + (long)ez_shape[1] * capacity * D;
  const long mean = ((long)hk * segments + (first_shape[0] - 1 + page) / 8) * D + lane * N;
  u32 low[N / 2], high[N / 2], ones[UNITS];
  TQ_UNROLL for (int i = 0; i < N / 2; ++i) {
    low[i] = 0u;
    high[i] = 0u;
  }
  TQ_UNROLL for (int i = 0; i < UNITS; ++i) ones[i] = 0u;

  TQ_UNROLL for (int t = 0; t < 8; ++t) {
    const int token = warp * 8 + t;
    float x[N];
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      const float k = tq_clean(float(ez[source + t * D + i])) - float(mu[mean + i]);
      x[i] = k / float(eq[hk * D + lane * N + i]);
    }
    const float norm = tq_normalise<N>(x, lane);
    u32 words[OWN];
    float scale, missed;
    tq_quantise_key<N, OWN>(x, norm, words, scale, missed, lane);
    if (N < PER_WORD) {
      TQ_UNROLL for (int step = 1; step < PER_WORD / N; step *= 2) {
        words[0] |= TQ_XOR(words[0], step);
      }
    }
    if (N >= PER_WORD || (lane & (PER_WORD / N - 1)) == 0) {
      TQ_UNROLL for (int j = 0; j < OWN; ++j) {
        kw[(at * (D / PER_WORD) + lane * N / PER_WORD + j) * 64 + token] = words[j];
      }
    }
    if (lane == 0) {
      ks[at * KEY_SCALARS * 64 + token] = H(scale);
      if (KEY_SCALARS == 2) ks[(at * KEY_SCALARS + 1) * 64 + token] = H(missed);
    }

    TQ_UNROLL for (int i = 0; i < N; ++i) x[i] = tq_clean(float(ez[values + t * D + i]));
    const float size = tq_normalise<N>(x, lane);
    float sum = 0.f;
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      u32 code = 0u;
      TQ_UNROLL for (int k = 0; k < (VALUE_BITS == 3 ? 7 : 15); ++k)
        code += x[i] > V_BOUNDS[k] ? 1u : 0u;
      const float level = V_LEVELS[code];
      sum += level * level;
      low[i / 2] |= (code & 3u) << (2 * t + 16 * (i & 1));
      if (VALUE_BITS == 3) {
        const int pair = ((lane * N + i) / 2) & 1;
        ones[i / 4] |= (code >> 2) << (4 * (4 * (i & 1) + t / 2) + 2 * pair + (t & 1));
      } else {
        high[i / 2] |= (code >> 2) << (2 * t + 16 * (i & 1));
      }
    }
    sum = tq_sum(sum);
    if (lane == 0) vs[at * 64 + token] = H(tq_fit(size > 0.f ? size / TQ_SQRT(sum) : 0.f));
  }
  const long out = (at * 8 + warp) * VALUE_WORDS;
  TQ_UNROLL for (int i = 0; i < N / 2; ++i) {
    vw[out + lane * (N / 2) + i] = low[i];
    if (VALUE_BITS == 4) vw[out + D / 2 + lane * (N / 2) + i] = high[i];
  }
  if (VALUE_BITS == 3) {
    if (N == 2) ones[0] |= TQ_XOR(ones[0], 1);
    if (N >= 4 || (lane & 1) == 0) {
      TQ_UNROLL for (int i = 0; i < UNITS; ++i) vw[out + D / 2 + lane * N / 4 + i] = ones[i];
    }
  }
""",
    header=r"""
#define SINKS 4
// NaN is zero, what does not fit fp16 is its largest number.
TQ_FN float tq_clean(float x) {
  const u32 bits = TQ_BITS(x), size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return 0.f;
  return size > 0x477fe000u ? TQ_FLOAT((bits & 0x80000000u) | 0x477fe000u) : x;
}

TQ_FN float tq_fit(float x) { return x > 65504.f ? 65504.f : x; }

// Rotate and scale to length sqrt(D); returns the length before.
template <int N>
TQ_FN float tq_normalise(TQ_REF float* x, int lane) {
  float sum = 0.f;
  TQ_UNROLL for (int i = 0; i < N; ++i) {
    sum += x[i] * x[i];
    x[i] = tq_signed(x[i], 0, lane * N + i);
  }
  const float norm = TQ_SQRT(tq_sum(sum));
  tq_transform<N>(x, lane);
  const float unit = norm > 1e-18f ? 1.f / norm : 0.f;  // transform lacks 1/sqrt(D): length sqrt(D)
  TQ_UNROLL for (int i = 0; i < N; ++i) x[i] = tq_signed(x[i] * unit, 1, lane * N + i);
  return norm > 1e-18f ? norm : 0.f;
}

#if KEY_BITS == 8
template <int N, int OWN>
TQ_FN void tq_quantise_key(TQ_REF float* y, float norm, TQ_REF u32* words, TQ_REF float& scale,
                           TQ_REF float& missed, int lane) {
  float top = 1e-20f;
  TQ_UNROLL for (int i = 0; i < N; ++i) {
    const float a = y[i] < 0.f ? -y[i] : y[i];
    top = a > top ? a : top;
  }
  top = tq_max(top);
  TQ_UNROLL for (int j = 0; j < OWN; ++j) words[j] = 0u;
  TQ_UNROLL for (int i = 0; i < N; ++i) {
    const u32 code = (u32)(int)(TQ_ROUND(y[i] * (127.f / top)) + 128.f);
    words[i / 4] |= code << (8 * ((lane * N + i) & 3));
  }
  scale = tq_fit(norm * top * (ROOT / 127.f));
  missed = 0.f;
}
#else
template <int N, int OWN>
TQ_FN void tq_quantise_key(TQ_REF float* y, float norm, TQ_REF u32* words, TQ_REF float& scale,
                           TQ_REF float& missed, int lane) {
  float sum = 0.f, rest = 0.f;
  TQ_UNROLL for (int j = 0; j < OWN; ++j) words[j] = 0u;
  TQ_UNROLL for (int i = 0; i < N; ++i) {
    const bool negative = y[i] < 0.f;
    const float a = negative ? -y[i] : y[i];
    u32 m = 0u;
    TQ_UNROLL for (int k = 0; k < 7; ++k) m += a > K_BOUNDS[k] ? 1u : 0u;
    const float level = K_LEVELS[8 + m], left = a - K_COARSE[m / 2];
    sum += level * level;
    rest += left * left;
    const int n = (lane * N + i) & 7;
    if (ORDER == 0) words[i / 8] |= (negative ? 7u - m : 8u + m) << (4 * n);
    else
      words[i / 8] |= (m << (4 * n)) | ((negative ? 1u : 0u) << (n < 4 ? 8 * n + 7 : 8 * n - 29));
  }
  sum = tq_sum(sum);
  rest = tq_sum(rest);
  scale = tq_fit(norm > 0.f ? norm / TQ_SQRT(sum) : 0.f);
  missed = tq_fit(norm * TQ_SQRT(rest) * ROOT);
}
#endif
""",
)
