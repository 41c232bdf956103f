"""Decode over pages with 8x8 simdgroup matrices: Metal, for groups of five to eight query heads.

Tokens times heads is one matrix product and dims times heads another, so a code is decoded once for
all eight columns and straight into the registers of a matrix (lane l holds row R, columns C and C +
1). The logits come out in the layout in which the weights go into the second product: nothing is
moved.
"""

from swiftlm_engine.turboquant.kernels.dialect import Text
from swiftlm_engine.turboquant.kernels.exact import EXACT
from swiftlm_engine.turboquant.kernels.scalar import INPUTS, OUTPUTS, SCALAR

SIMDGROUP = Text(
    "simdgroup",
    INPUTS,
    OUTPUTS,
    r"""
  const int WORDS = D * KEY_BITS / 32, BLOCKS = D / 8;
  const int VALUE_WORDS = D / 2 + (VALUE_BITS == 3 ? D / 4 : D / 2);
  const int LOW = (D / 2 + 31) / 32, HIGH = VALUE_BITS == 3 ? (D / 4 + 31) / 32 : LOW;
  const int WIDE = (D / 2 + 31) / 32 * 64, MERGE = NW / 2 * 8 * WIDE;  // of the exact zone's lanes
  TQ_SHARED16 float room[8 * D > MERGE ? 8 * D : MERGE];
  TQ_SHARED float offsets[32 * 8];
  TQ_SHARED float tops[NW * 8], weights[NW * 8];
  const int row = by * G, hk = by / GB, capacity = kw_shape[1], segments = mu_shape[1];
  const int count = pages_shape[0] - 1, zones = pages_shape[1] - 1;
  const int split = bx - zones, splits = nbx - zones;
  const int first = count * split / splits, last = count * (split + 1) / splits;
  const int segment0 = first / 8, some = last > first ? (last - 1) / 8 - segment0 + 1 : 0;
"""
    + EXACT
    + r"""
  const int R = (lane / 4 & 4) + (lane / 2 & 3), C = (lane / 4 & 2) * 2 + (lane & 1) * 2;

  for (int g = warp; g < 8; g += NW) {
    float x[TURN ? D / 32 : 1];
    if (TURN && g < G) tq_turn_query<TURN ? D / 32 : 1>(q + (row + g) * D, eq + hk * D, x, lane);
    if (TURN) {
      TQ_UNROLL for (int i = 0; i < (TURN ? D / 32 : 1); ++i) {
        room[g * D + lane * (D / 32) + i] = g < G ? x[i] * SCALE : 0.f;
      }
    } else {
      for (int d = lane; d < D; d += 32) {
        room[g * D + d] = g < G ? float(eq[(row + g) * D + d]) * SCALE : 0.f;
      }
    }
  }
  for (int n = warp; n < some * 8; n += NW) {
    const int segment = segment0 + n / 8, g = n % 8;
    float dot = 0.f;
    if (g < G) dot = tq_offset(q + (row + g) * D, mu + ((long)hk * segments + segment) * D, lane);
    if (lane == 0) offsets[n] = dot;
  }
  TQ_BARRIER();

  simdgroup_matrix<float, 8, 8> query[BLOCKS], acc[BLOCKS];
  TQ_UNROLL for (int b = 0; b < BLOCKS; ++b) {
    simdgroup_load(query[b], room + 8 * b, D, ulong2(0, 0), true);
    acc[b] = simdgroup_matrix<float, 8, 8>(0.f);
  }
  TQ_BARRIER();
  const float key_level = TQ_KEY_LEVEL(lane & 15),
              value_level = V_LEVELS[lane & (VALUE_BITS == 3 ? 7 : 15)];
  float peak[2] = {-1e30f, -1e30f}, sum[2] = {0.f, 0.f};

  for (int tile = first * 2 + warp; tile < last * 2; tile += NW) {
    const long at = (long)hk * capacity + tile / 2;
    const int side = 32 * (tile & 1);
    TQ_IN u32* words = kw + at * (WORDS * 64) + side + lane;
    simdgroup_matrix<float, 8, 8> s[4];
    TQ_UNROLL for (int b = 0; b < 4; ++b) s[b] = simdgroup_matrix<float, 8, 8>(0.f);
    TQ_UNROLL for (int w = 0; w < BLOCKS; ++w) {
      const u32 x = words[(KEY_BITS == 8 ? 2 * w : w) * 64];
      const u32 y = KEY_BITS == 8 ? words[(2 * w + 1) * 64] : 0u;
      TQ_UNROLL for (int b = 0; b < 4; ++b) {
        simdgroup_matrix<float, 8, 8> keys;
        if (KEY_BITS == 8) {
          const u32 near = TQ_SHUFFLE(x, 8 * b + R), far = TQ_SHUFFLE(y, 8 * b + R);
          const u32 mine = (C < 4 ? near : far) >> (8 * (C & 3));
          keys.thread_elements()[0] = float(int(mine & 255u) - 128);
          keys.thread_elements()[1] = float(int((mine >> 8) & 255u) - 128);
        } else {
          const u32 mine = TQ_SHUFFLE(x, 8 * b + R) >> (4 * C);
          keys.thread_elements()[0] = TQ_SHUFFLE(key_level, mine & 15u);
          keys.thread_elements()[1] = TQ_SHUFFLE(key_level, (mine >> 4) & 15u);
        }
        simdgroup_multiply_accumulate(s[b], keys, query[w], s[b]);
      }
    }
    bool raise = false;
    TQ_UNROLL for (int b = 0; b < 4; ++b) {
      const float scale = float(ks[at * KEY_SCALARS * 64 + side + 8 * b + R]);
      TQ_UNROLL for (int k = 0; k < 2; ++k) {
        const float offset = offsets[(tile / 16 - segment0) * 8 + C + k];
        s[b].thread_elements()[k] = TQ_FMA(s[b].thread_elements()[k], scale, offset);
        raise = raise || s[b].thread_elements()[k] > peak[k] + 8.f;
      }
    }
    if (TQ_ANY(raise)) {
      float shrink[2];
      TQ_UNROLL for (int k = 0; k < 2; ++k) {
        float x = peak[k];
        TQ_UNROLL for (int b = 0; b < 4; ++b)
          x = s[b].thread_elements()[k] > x ? s[b].thread_elements()[k] : x;
        x = tq_column_max(x);
        shrink[k] = TQ_EXP2(peak[k] - x);
        peak[k] = x;
        sum[k] *= shrink[k];
      }
      TQ_UNROLL for (int b = 0; b < BLOCKS; ++b) {
        acc[b].thread_elements()[0] *= shrink[0];
        acc[b].thread_elements()[1] *= shrink[1];
      }
    }
    TQ_UNROLL for (int b = 0; b < 4; ++b) {
      const float scale = float(vs[at * 64 + side + 8 * b + R]);
      TQ_UNROLL for (int k = 0; k < 2; ++k) {
        const float p = TQ_EXP2(s[b].thread_elements()[k] - peak[k]);
        sum[k] += p;
        s[b].thread_elements()[k] = p * scale;
      }
    }
    TQ_UNROLL for (int b = 0; b < 4; ++b) {
      TQ_IN u32* vp = vw + (at * 8 + side / 8 + b) * VALUE_WORDS;
      u32 low[LOW], high[HIGH];
      TQ_UNROLL for (int j = 0; j < LOW; ++j) {
        low[j] = vp[32 * j + lane < D / 2 ? 32 * j + lane : 0];
      }
      TQ_UNROLL for (int j = 0; j < HIGH; ++j) {
        high[j] = vp[32 * j + lane < VALUE_WORDS - D / 2 ? D / 2 + 32 * j + lane : 0];
      }
      TQ_UNROLL for (int d = 0; d < BLOCKS; ++d) {
        const int pair = d * 4 + R / 2, which = R & 1;
        const u32 a = TQ_SHUFFLE(low[d / 8], pair & 31) >> (2 * C + 16 * which);
        u32 code0 = a & 3u, code1 = (a >> 2) & 3u;
        if (VALUE_BITS == 3) {
          const u32 z = TQ_SHUFFLE(high[d / 16], (pair / 2) & 31) >>
                        (4 * (4 * which + C / 2) + 2 * (pair & 1));
          code0 |= (z & 1u) << 2;
          code1 |= (z & 2u) << 1;
        } else {
          const u32 z = TQ_SHUFFLE(high[d / 8], pair & 31) >> (2 * C + 16 * which);
          code0 |= (z & 3u) << 2;
          code1 |= z & 12u;
        }
        simdgroup_matrix<float, 8, 8> values;
        values.thread_elements()[0] = TQ_SHUFFLE(value_level, code0);
        values.thread_elements()[1] = TQ_SHUFFLE(value_level, code1);
        simdgroup_multiply_accumulate(acc[d], values, s[b], acc[d]);
      }
    }
  }

  TQ_UNROLL for (int k = 0; k < 2; ++k) {
    const float total = tq_column_sum(sum[k]);
    if (R == 0) {
      tops[warp * 8 + C + k] = peak[k];
      weights[warp * 8 + C + k] = total;
    }
  }
  TQ_BARRIER();
  const long out = ((long)by * nbx + bx) * G;
  TQ_UNROLL for (int k = 0; k < 2; ++k) {
    float highest = -1e30f, total = 0.f;
    for (int w = 0; w < NW; ++w)
      highest = tops[w * 8 + C + k] > highest ? tops[w * 8 + C + k] : highest;
    for (int w = 0; w < NW; ++w)
      total += weights[w * 8 + C + k] * TQ_EXP2(tops[w * 8 + C + k] - highest);
    const float shrink = TQ_EXP2(peak[k] - highest);
    TQ_UNROLL for (int b = 0; b < BLOCKS; ++b) acc[b].thread_elements()[k] *= shrink;
    if (warp == 0 && R == 0 && C + k < G) {
      part[(out + C + k) * ROW + D] = highest;
      part[(out + C + k) * ROW + D + 1] = total;
    }
  }
  for (int n = NW / 2; n > 0; n /= 2) {
    if (warp >= n && warp < 2 * n) {
      TQ_UNROLL for (int b = 0; b < BLOCKS; ++b) {
        TQ_UNROLL for (int k = 0; k < 2; ++k) {
          room[(((warp - n) * BLOCKS + b) * 2 + k) * 32 + lane] = acc[b].thread_elements()[k];
        }
      }
    }
    TQ_BARRIER();
    if (warp < n) {
      TQ_UNROLL for (int b = 0; b < BLOCKS; ++b) {
        TQ_UNROLL for (int k = 0; k < 2; ++k) {
          acc[b].thread_elements()[k] += room[((warp * BLOCKS + b) * 2 + k) * 32 + lane];
        }
      }
    }
    TQ_BARRIER();
  }
  if (warp == 0) {
    TQ_UNROLL for (int k = 0; k < 2; ++k) {
      if (C + k < G) {
        TQ_UNROLL for (int b = 0; b < BLOCKS; ++b) {
          part[(out + C + k) * ROW + 8 * b + R] = acc[b].thread_elements()[k];
        }
      }
    }
  }
""",
    header=SCALAR.header
    + r"""
// Over the rows of an 8x8 matrix: lanes that hold the same columns.
TQ_FN float tq_column_max(float x) {
  const int steps[3] = {2, 4, 16};
  TQ_UNROLL for (int i = 0; i < 3; ++i) {
    const float other = TQ_XOR(x, steps[i]);
    x = other > x ? other : x;
  }
  return x;
}

TQ_FN float tq_column_sum(float x) {
  x += TQ_XOR(x, 2);
  x += TQ_XOR(x, 4);
  return x + TQ_XOR(x, 16);
}
""",
)
