"""Decode over the exact zone: sinks and newest tokens, in the model's dtype, not rotated.

It runs beside the page kernel, so its time hides behind it. A simdgroup takes 32 tokens: lane =
token for the logits, lane = dims for the values. Grid: (blocks of NW * 32 tokens, KV heads * GB).
"""

from swiftlm_engine.turboquant.kernels.dialect import Text

EXACT = Text(
    "exact",
    ("q", "ek", "ev", "tokens"),
    ("top", "weight", "part"),
    r"""
  const int PER_LANE = (D / 2 + 31) / 32, N = 2 * PER_LANE;
  const int LANES = (D / 2 + PER_LANE - 1) / PER_LANE, GP = (G + 3) / 4 * 4;
  const int QUERY = G * D, PROBS = NW * 32 * GP, MERGE = NW / 2 * G * 32 * N;
  TQ_SHARED16 float room[QUERY + PROBS > MERGE ? QUERY + PROBS : MERGE];
  TQ_SHARED float tops[NW * G], weights[NW * G];
  TQ_SHARED_PTR float* asked = room;
  TQ_SHARED_PTR float* probs = room + QUERY;
  const int row = by * G, hk = by / GB, capacity = ek_shape[1], count = tokens_shape[0] - 1;

  for (int i = warp * 32 + lane; i < G * D; i += NW * 32) asked[i] = float(q[row * D + i]) * SCALE;
  TQ_BARRIER();
  TqState<G, N> st;
  tq_start(st);
  const int start = (bx * NW + warp) * 32;
  if (start < count) {
    const bool live = start + lane < count;
    const long base = ((long)hk * capacity + start) * D;
    const long mine = base + (live ? lane : 0) * D;
    float s[1][G];
    TQ_UNROLL for (int g = 0; g < G; ++g) s[0][g] = 0.f;
    TQ_UNROLL4 for (int d = 0; d < D; d += 4) {
      const float a = float(ek[mine + d]), b = float(ek[mine + d + 1]);
      const float c = float(ek[mine + d + 2]), e = float(ek[mine + d + 3]);
      TQ_UNROLL for (int g = 0; g < G; ++g) {
        const float4 y = ((const TQ_SHARED_PTR float4*)(asked + g * D + d))[0];
        s[0][g] = TQ_FMA(y.x, a, TQ_FMA(y.y, b, TQ_FMA(y.z, c, TQ_FMA(y.w, e, s[0][g]))));
      }
    }
    TQ_UNROLL for (int g = 0; g < G; ++g) s[0][g] = live ? s[0][g] : -3e38f;
    tq_weigh(st, s);
    TQ_WARP_BARRIER();
    TQ_UNROLL for (int g = 0; g < G; ++g) probs[(warp * 32 + lane) * GP + g] = s[0][g];
    TQ_WARP_BARRIER();
    const int own = lane < LANES ? lane : LANES - 1, here = count - start < 32 ? count - start : 32;
    for (int t = 0; t < here; ++t) {
      float v[N];
      TQ_UNROLL for (int i = 0; i < N; ++i) v[i] = float(ev[base + t * D + own * N + i]);
      TQ_UNROLL for (int g = 0; g < G; ++g) {
        const float p = probs[(warp * 32 + t) * GP + g];
        TQ_UNROLL for (int i = 0; i < N; ++i) st.acc[g][i] = TQ_FMA(p, v[i], st.acc[g][i]);
      }
    }
  }
  TQ_BARRIER();
  const long out = ((long)by * nbx + bx) * G;
  tq_write<G, N, NW>(st, tops, weights, room, top + out, weight + out, part + out * D, lane, warp,
                     LANES);
""",
)
