"""The exact zone in a decode kernel: sinks and newest tokens, in the model's dtype, not rotated.

The first threadgroups of every KV head (`zones` of them) run this text instead of pages: no launch
of its own. Lane = dims, R tokens in flight. This step's tokens come as `nk`, `nv`; with APPEND the
zone is written anew, with them, to `xz`: the GPU may still be reading the old one, and a copy of
some 130 tokens costs less than slice updates.
"""

# Names it needs around it: zones, hk, row, lane, warp, G, GB, NW, APPEND, Z (the type of the zone);
# shared room, tops, weights.
EXACT = r"""
  if (bx < zones) {
    const int HELD_LANE = (D / 2 + 31) / 32, M = 2 * HELD_LANE, R = G > 4 ? 2 : 4;
    const int USED = (D / 2 + HELD_LANE - 1) / HELD_LANE, own = lane < USED ? lane : USED - 1;
    const int held = tokens_shape[0] - 1, seen = tokens_shape[1] - 1, fresh = tokens_shape[2] - 1;
    const long zone = (long)hk * ez_shape[2] * D + own * M;
    const long values = (long)ez_shape[1] * ez_shape[2] * D;  // behind the keys
    const long added = ((long)hk * fresh - held) * D + own * M;
    for (int g = warp; g < G; g += NW) {
      for (int d = lane; d < D; d += 32) room[g * D + d] = float(q[(row + g) * D + d]) * SCALE;
    }
    TQ_BARRIER();
    TqState<G, M> st;
    tq_start(st);
    for (int t = (bx * NW + warp) * R; t < held + seen; t += zones * NW * R) {
      TqRow<M, Z> k[R], v[R];
      TQ_UNROLL for (int r = 0; r < R; ++r) {
        const int at = t + r < held + seen ? t + r : t;
        const long place = zone + (long)at * D, other = added + (long)at * D;
        tq_read(k[r], at < held ? ez + place : nk + other);
        tq_read(v[r], at < held ? ez + values + place : nv + other);
        if (APPEND && by % GB == 0 && lane < USED) {
          tq_store(k[r], xz + place);
          tq_store(v[r], xz + values + place);
        }
      }
      TQ_UNROLL for (int g = 0; g < G; ++g) {
        float s[R], top = st.top[g];
        TQ_UNROLL for (int r = 0; r < R; ++r) {
          float dot = 0.f;
          TQ_UNROLL for (int i = 0; i < M; ++i) {
            dot = TQ_FMA(room[g * D + own * M + i], float(k[r].v[i]), dot);
          }
          s[r] = tq_sum(lane < USED ? dot : 0.f);
          s[r] = t + r < held + seen ? s[r] : -3e38f;
          top = s[r] > top ? s[r] : top;
        }
        const float shrink = TQ_EXP2(st.top[g] - top);
        st.top[g] = top;
        st.weight[g] *= shrink;
        TQ_UNROLL for (int i = 0; i < M; ++i) st.acc[g][i] *= shrink;
        TQ_UNROLL for (int r = 0; r < R; ++r) {
          const float p = TQ_EXP2(s[r] - top);
          st.weight[g] += lane == 0 ? p : 0.f;
          TQ_UNROLL for (int i = 0; i < M; ++i) {
            st.acc[g][i] = TQ_FMA(p, float(v[r].v[i]), st.acc[g][i]);
          }
        }
      }
    }
    const long out = ((long)by * nbx + bx) * G;
    tq_write<G, M, NW>(st, tops, weights, room, part + out * ROW, lane, warp, USED);
    return;
  }
"""
