"""Decode over pages, scalar form: both dialects, any format, any group of query heads.

A simdgroup takes whole pages. Key phase: lane = two tokens, every code decoded once and used by all
G heads, queries broadcast from threadgroup memory. Value phase: lane = dims, likewise once. Grid:
(splits, KV heads * GB); partial results (ROW) in the rotated space go to `merge`.
"""

from swiftlm_engine.turboquant.kernels.dialect import Text
from swiftlm_engine.turboquant.kernels.exact import EXACT

INPUTS = (
    *("q", "kw", "ks", "vw", "vs", "mu", "eq", "ez", "nk", "nv"),
    *("pages", "tokens"),  # shapes say: pages, zones; exact tokens, new tokens seen, new tokens
)
OUTPUTS = ("part", "xz")
MAX_SEGMENTS = 32  # per split: room for their q.mu

# Sizes: G heads per block, GB blocks per KV head, NW simdgroups, TURN rotate here (else `eq`
# holds turned queries), DEC 1 table in threadgroup memory, 2 table spread over the lanes.
SCALAR = Text(
    "scalar",
    INPUTS,
    OUTPUTS,
    r"""
  const int HALVES = D / 2, PER_LANE = (HALVES + 31) / 32, N = 2 * PER_LANE;
  const int LANES = (HALVES + PER_LANE - 1) / PER_LANE, GP = (G + 3) / 4 * 4;
  const int WORDS = D * KEY_BITS / 32, PER_WORD = 32 / KEY_BITS;
  const int VALUE_WORDS = D / 2 + (VALUE_BITS == 3 ? D / 4 : D / 2);
  const int QUERY = G * D, PROBS = NW * 64 * GP, MERGE = NW / 2 * G * 32 * N;
  TQ_SHARED16 float room[QUERY + PROBS > MERGE ? QUERY + PROBS : MERGE];
  TQ_SHARED float levels[32];
  TQ_SHARED float offsets[32 * G];
  TQ_SHARED float tops[NW * G], weights[NW * G];
  TQ_SHARED_PTR float* turned = room;
  TQ_SHARED_PTR float* probs = room + QUERY;
  const int row = by * G, hk = by / GB, capacity = kw_shape[1], segments = mu_shape[1];
  const int count = pages_shape[0] - 1, zones = pages_shape[1] - 1;
  const int split = bx - zones, splits = nbx - zones;
  const int first = count * split / splits, last = count * (split + 1) / splits;
  const int segment0 = first / 8, some = last > first ? (last - 1) / 8 - segment0 + 1 : 0;
"""
    + EXACT
    + r"""
  if (warp == 0)
    levels[lane] = lane < 16 ? TQ_KEY_LEVEL(lane) : V_LEVELS[lane & (VALUE_BITS == 3 ? 7 : 15)];
  for (int g = warp; g < G; g += NW) {
    if (TURN) {
      float x[TURN ? D / 32 : 1];
      tq_turn_query<TURN ? D / 32 : 1>(q + (row + g) * D, eq + hk * D, x, lane);
      TQ_UNROLL for (int i = 0; i < (TURN ? D / 32 : 1); ++i) {
        turned[g * D + lane * (D / 32) + i] = x[i] * SCALE;
      }
    } else {
      for (int d = lane; d < D; d += 32) turned[g * D + d] = float(eq[(row + g) * D + d]) * SCALE;
    }
  }
  for (int n = warp; n < some * G; n += NW) {
    const int segment = segment0 + n / G, g = n % G;
    const float dot = tq_offset(q + (row + g) * D, mu + ((long)hk * segments + segment) * D, lane);
    if (lane == 0) offsets[n] = dot;
  }
  TQ_BARRIER();

  const float key_level = levels[lane & 15], value_level = levels[16 + (lane & 15)];
  const int own = lane < LANES ? lane : LANES - 1;
  TqState<G, N> st;
  tq_start(st);
  for (int page = first + warp; page < last; page += NW) {
    const long at = (long)hk * capacity + page;
    TQ_IN u32* words = kw + at * (WORDS * 64) + lane;
    float s[2][G];
    TQ_UNROLL for (int g = 0; g < G; ++g) {
      s[0][g] = 0.f;
      s[1][g] = 0.f;
    }
    TQ_UNROLL4 for (int w = 0; w < WORDS; ++w) {
      const u32 x[2] = {words[w * 64], words[w * 64 + 32]};
      float k[2][PER_WORD];
      TQ_UNROLL for (int i = 0; i < PER_WORD; ++i) {
        TQ_UNROLL for (int r = 0; r < 2; ++r) {
          if (KEY_BITS == 8) k[r][i] = float(int((x[r] >> (8 * i)) & 255u) - 128);
          else if (DEC == 1) k[r][i] = levels[(x[r] >> (4 * i)) & 15u];
          else k[r][i] = TQ_SHUFFLE(key_level, (x[r] >> (4 * i)) & 15u);
        }
      }
      TQ_UNROLL for (int g = 0; g < G; ++g) {
        TQ_UNROLL for (int i = 0; i < PER_WORD; i += 4) {
          const float4 y = ((const TQ_SHARED_PTR float4*)(turned + g * D + w * PER_WORD + i))[0];
          TQ_UNROLL for (int r = 0; r < 2; ++r) {
            s[r][g] = TQ_FMA(y.x, k[r][i],
                             TQ_FMA(y.y, k[r][i + 1],
                                    TQ_FMA(y.z, k[r][i + 2], TQ_FMA(y.w, k[r][i + 3], s[r][g]))));
          }
        }
      }
    }
    TQ_UNROLL for (int r = 0; r < 2; ++r) {
      const float scale = float(ks[at * KEY_SCALARS * 64 + 32 * r + lane]);
      TQ_UNROLL for (int g = 0; g < G; ++g) {
        s[r][g] = TQ_FMA(s[r][g], scale, offsets[(page / 8 - segment0) * G + g]);
      }
    }
    tq_weigh(st, s);
    TQ_WARP_BARRIER();
    TQ_UNROLL for (int r = 0; r < 2; ++r) {
      const float scale = float(vs[at * 64 + 32 * r + lane]);
      TQ_UNROLL for (int g = 0; g < G; ++g) {
        probs[(warp * 64 + 32 * r + lane) * GP + g] = s[r][g] * scale;
      }
    }
    TQ_WARP_BARRIER();
    for (int octet = 0; octet < 8; ++octet) {
      TQ_IN u32* vp = vw + (at * 8 + octet) * VALUE_WORDS;
      u32 low[PER_LANE], high[PER_LANE];
      TQ_UNROLL for (int j = 0; j < PER_LANE; ++j) {
        const int pair = own * PER_LANE + j;
        low[j] = vp[pair];
        high[j] = VALUE_BITS == 3 ? vp[D / 2 + pair / 2] >> (2 * (pair & 1)) : vp[D / 2 + pair];
      }
      TQ_UNROLL for (int t = 0; t < 8; ++t) {
        float v[N];
        TQ_UNROLL for (int i = 0; i < N; ++i) {
          // The high bit lands on bit 2 by one shift: its place is known at compile time.
          const int place = VALUE_BITS == 3 ? 4 * (4 * (i & 1) + t / 2) + (t & 1) - 2
                                            : 2 * t + 16 * (i & 1) - 2;
          const u32 x = high[i / 2];
          const u32 top2 = place < 0 ? x << (place < 0 ? -place : 0) : x >> (place < 0 ? 0 : place);
          const u32 code = ((low[i / 2] >> (2 * t + 16 * (i & 1))) & 3u) |
                           (top2 & (VALUE_BITS == 3 ? 4u : 12u));
          v[i] = DEC == 1 ? levels[16 + code] : TQ_SHUFFLE(value_level, code);
        }
        TQ_SHARED_PTR const float4* p =
            (TQ_SHARED_PTR const float4*)(probs + (warp * 64 + octet * 8 + t) * GP);
        TQ_UNROLL for (int g4 = 0; g4 < GP / 4; ++g4) {
          const float4 y = p[g4];
          const float w[4] = {y.x, y.y, y.z, y.w};
          TQ_UNROLL for (int g = 0; g < 4; ++g) {
            if (4 * g4 + g < G) {
              TQ_UNROLL for (int i = 0; i < N; ++i) {
                st.acc[4 * g4 + g][i] = TQ_FMA(w[g], v[i], st.acc[4 * g4 + g][i]);
              }
            }
          }
        }
      }
    }
  }
  TQ_BARRIER();
  const long out = ((long)by * nbx + bx) * G;
  tq_write<G, N, NW>(st, tops, weights, room, part + out * ROW, lane, warp, LANES);
""",
    header=r"""
#if KEY_BITS == 8
#define TQ_KEY_LEVEL(i) 0.f
#else
#define TQ_KEY_LEVEL(i) K_LEVELS[i]
#endif
""",
)
