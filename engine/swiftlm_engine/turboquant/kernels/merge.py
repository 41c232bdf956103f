"""Merge the splits of pages and exact zone, turn the pages' sum back, write the model's dtype.

One threadgroup per query head. With TURN 0 (head sizes without a Hadamard matrix) the sum over
pages stays rotated and goes to `o`, the sum over the exact zone to its second half; the host turns
and adds.
"""

from swiftlm_engine.turboquant.kernels.dialect import Text

MERGE = Text(
    "merge",
    ("part", "pages"),
    ("o",),
    r"""
  const int N = (D + 31) / 32, splits = part_shape[1], zones = pages_shape[1] - 1;
  const int head = bx;
  const long base = (long)(head / G) * splits * G + head % G;
  TQ_SHARED float sums[NW * N * 32], exact_sums[NW * N * 32], weights[NW];

  float highest = -1e30f;
  for (int i = lane; i < splits; i += 32) {
    const float x = part[(base + i * G) * ROW + D];
    highest = x > highest ? x : highest;
  }
  highest = tq_max(highest);

  float total = 0.f, a[N], e[N];
  TQ_UNROLL for (int i = 0; i < N; ++i) {
    a[i] = 0.f;
    e[i] = 0.f;
  }
  TQ_UNROLL4 for (int s = zones + warp; s < splits; s += NW) {
    TQ_IN float* one = part + (base + s * G) * ROW;
    const float share = TQ_EXP2(one[D] - highest);
    total += share * one[D + 1];
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      if (i * 32 + lane < D) a[i] = TQ_FMA(share, one[i * 32 + lane], a[i]);
    }
  }
  // The last warps have one split less.
  for (int s = NW - 1 - warp; s < zones; s += NW) {
    TQ_IN float* one = part + (base + s * G) * ROW;
    const float share = TQ_EXP2(one[D] - highest);
    total += share * one[D + 1];
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      if (i * 32 + lane < D) e[i] = TQ_FMA(share, one[i * 32 + lane], e[i]);
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
