"""Merge the splits of pages and exact zone, turn the pages' sum back, write the model's dtype.

One threadgroup per query head. With TURN 0 (head sizes without a Hadamard matrix) the sum over
pages stays rotated and goes to `o`, the sum over the exact zone to its second half; the host turns
and adds.
"""

from swiftlm_engine.turboquant.kernels.dialect import Text

MERGE = Text(
    "merge",
    ("top", "weight", "part", "exact_top", "exact_weight", "exact_part"),
    ("o",),
    r"""
  const int N = (D + 31) / 32, splits = top_shape[1], blocks = exact_top_shape[1];
  const int head = bx, block = head / G, g = head % G;
  const long base = (long)block * splits * G + g, exact_base = (long)block * blocks * G + g;
  TQ_SHARED float sums[NW * N * 32], exact_sums[NW * N * 32], weights[NW];

  float highest = -1e30f;
  for (int i = lane; i < splits; i += 32) {
    const float x = top[base + i * G];
    highest = x > highest ? x : highest;
  }
  for (int i = lane; i < blocks; i += 32) {
    const float x = exact_top[exact_base + i * G];
    highest = x > highest ? x : highest;
  }
  highest = tq_max(highest);

  float total = 0.f, a[N], e[N];
  TQ_UNROLL for (int i = 0; i < N; ++i) {
    a[i] = 0.f;
    e[i] = 0.f;
  }
  TQ_UNROLL4 for (int s = warp; s < splits; s += NW) {
    const float share = TQ_EXP2(top[base + s * G] - highest);
    total += share * weight[base + s * G];
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      if (i * 32 + lane < D) a[i] = TQ_FMA(share, part[(base + s * G) * D + i * 32 + lane], a[i]);
    }
  }
  for (int s = warp; s < blocks; s += NW) {
    const float share = TQ_EXP2(exact_top[exact_base + s * G] - highest);
    total += share * exact_weight[exact_base + s * G];
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      if (i * 32 + lane < D) {
        e[i] = TQ_FMA(share, exact_part[(exact_base + s * G) * D + i * 32 + lane], e[i]);
      }
    }
  }
  TQ_UNROLL for (int i = 0; i < N; ++i) {
    sums[(warp * N + i) * 32 + lane] = a[i];
    exact_sums[(warp * N + i) * 32 + lane] = e[i];
  }
  if (lane == 0) weights[warp] = total;
  TQ_BARRIER();
  if (warp == 0) {
    total = 0.f;
    TQ_UNROLL for (int w = 0; w < NW; ++w) total += weights[w];
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      a[i] = 0.f;
      e[i] = 0.f;
      TQ_UNROLL for (int w = 0; w < NW; ++w) {
        a[i] += sums[(w * N + i) * 32 + lane];
        e[i] += exact_sums[(w * N + i) * 32 + lane];
      }
    }
    const float share = total > 0.f ? 1.f / total : 0.f;
    if (TURN) {
      TQ_UNROLL for (int i = 0; i < N; ++i) a[i] = tq_signed(a[i], 1, i * 32 + lane);
      tq_transform<N>(a, lane);
      TQ_UNROLL for (int i = 0; i < N; ++i) {
        const float back = tq_signed(a[i] * ROOT, 0, i * 32 + lane);
        o[head * D + i * 32 + lane] = T((back + e[i]) * share);
      }
    } else {
      TQ_UNROLL for (int i = 0; i < N; ++i) {
        const int d = i * 32 + lane;
        if (d < D) {
          o[head * D + d] = T(a[i] * share);
          o[(nbx + head) * D + d] = T(e[i] * share);
        }
      }
    }
  }
""",
)
