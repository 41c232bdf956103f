"""Device functions that several kernels share, in the neutral dialect.

The constants in front of them (`constants.py`): D head size; ROW floats of a partial result (its
values, maximum, weight); SCALE softmax scale times log2(e);
ROOT 1/sqrt(D); SIGNS, K_LEVELS, K_BOUNDS, V_LEVELS, V_BOUNDS tables. Softmax runs in base 2
throughout.
"""

COMMON = r"""
// Sign `which` (0 before, 1 after the transform) of dim d, put onto x.
TQ_FN float tq_signed(float x, int which, int d) {
  return TQ_FLOAT(TQ_BITS(x) ^ (((SIGNS[which * (D / 32) + (d >> 5)] >> (d & 31)) & 1u) << 31));
}

// Walsh-Hadamard transform of N values per lane, without its 1/sqrt; any order of the dims that is
// a permutation of index bits (lane * N + i and i * 32 + lane both are).
template <int N>
TQ_FN void tq_transform(TQ_REF float* x, int lane) {
  TQ_UNROLL for (int step = 1; step < N; step *= 2) {
    TQ_UNROLL for (int i = 0; i < N; ++i) {
      if (!(i & step)) {
        const float a = x[i], b = x[i | step];
        x[i] = a + b;
        x[i | step] = a - b;
      }
    }
  }
  TQ_UNROLL for (int step = 1; step < 32; step *= 2) {
    const float sign = (lane & step) ? -1.f : 1.f;
    TQ_UNROLL for (int i = 0; i < N; ++i) x[i] = TQ_FMA(x[i], sign, TQ_XOR(x[i], step));
  }
}

TQ_FN float tq_sum(float x) {
  TQ_UNROLL for (int step = 1; step < 32; step *= 2) x += TQ_XOR(x, step);
  return x;
}

TQ_FN float tq_max(float x) {
  TQ_UNROLL for (int step = 1; step < 32; step *= 2) {
    const float other = TQ_XOR(x, step);
    x = other > x ? other : x;
  }
  return x;
}

// L neighbouring values of a row, read and written at once as far as their number allows.
template <int L, class Z>
struct alignas((L & -L) * sizeof(Z) < 16 ? (L & -L) * sizeof(Z) : 16) TqRow {
  Z v[L];
};

template <int L, class Z>
TQ_FN void tq_read(TQ_REF TqRow<L, Z>& x, TQ_IN Z* row) {
  TQ_MOVE(x, ((TQ_IN TqRow<L, Z>*)row)[0]);
}

template <int L, class Z>
TQ_FN void tq_store(TQ_REF TqRow<L, Z>& x, TQ_OUT Z* row) {
  TQ_MOVE(((TQ_OUT TqRow<L, Z>*)row)[0], x);
}

// Running softmax of one simdgroup: G heads, N dims of the output per lane.
template <int G, int N>
struct TqState {
  float top[G];
  float weight[G];
  float acc[G][N];
};

template <int G, int N>
TQ_FN void tq_start(TQ_REF TqState<G, N>& st) {
  TQ_UNROLL for (int g = 0; g < G; ++g) {
    st.top[g] = -1e30f;
    st.weight[g] = 0.f;
    TQ_UNROLL for (int i = 0; i < N; ++i) st.acc[g][i] = 0.f;
  }
}

// Take R logits per lane and head in; afterwards they are weights. The maximum follows only when a
// logit is 2^8 above it: fp32 has the room, and the sums need not be rescaled for every page.
template <int G, int N, int R>
TQ_FN void tq_weigh(TQ_REF TqState<G, N>& st, TQ_REF float (&s)[R][G]) {
  bool raise = false;
  TQ_UNROLL for (int r = 0; r < R; ++r) {
    TQ_UNROLL for (int g = 0; g < G; ++g) raise = raise || s[r][g] > st.top[g] + 8.f;
  }
  if (TQ_ANY(raise)) {
    TQ_UNROLL for (int g = 0; g < G; ++g) {
      float top = st.top[g];
      TQ_UNROLL for (int r = 0; r < R; ++r) top = s[r][g] > top ? s[r][g] : top;
      top = tq_max(top);
      const float shrink = TQ_EXP2(st.top[g] - top);
      st.top[g] = top;
      st.weight[g] *= shrink;
      TQ_UNROLL for (int i = 0; i < N; ++i) st.acc[g][i] *= shrink;
    }
  }
  TQ_UNROLL for (int r = 0; r < R; ++r) {
    TQ_UNROLL for (int g = 0; g < G; ++g) {
      s[r][g] = TQ_EXP2(s[r][g] - st.top[g]);
      st.weight[g] += s[r][g];
    }
  }
}

// Merge the simdgroups of a threadgroup and write its partial result. NW a power of two; `room`
// holds NW / 2 * G * 32 * N floats (NW > 1), `tops` and `weights` NW * G each. Dim of (lane, i) is
// lane * N + i; lanes from `lanes` on own none.
template <int G, int N, int NW>
TQ_FN void tq_write(TQ_REF TqState<G, N>& st, TQ_SHARED_PTR float* tops,
                    TQ_SHARED_PTR float* weights, TQ_SHARED_PTR float* room, TQ_OUT float* out,
                    int lane, int warp, int lanes) {
  TQ_UNROLL for (int g = 0; g < G; ++g) {
    const float weight = tq_sum(st.weight[g]);
    if (lane == 0) {
      tops[warp * G + g] = st.top[g];
      weights[warp * G + g] = weight;
    }
  }
  TQ_BARRIER();
  TQ_UNROLL for (int g = 0; g < G; ++g) {
    float top = -1e30f, weight = 0.f;
    for (int w = 0; w < NW; ++w) top = tops[w * G + g] > top ? tops[w * G + g] : top;
    for (int w = 0; w < NW; ++w) weight += weights[w * G + g] * TQ_EXP2(tops[w * G + g] - top);
    const float shrink = TQ_EXP2(st.top[g] - top);
    TQ_UNROLL for (int i = 0; i < N; ++i) st.acc[g][i] *= shrink;
    if (warp == 0 && lane == 0) {
      out[g * ROW + D] = top;
      out[g * ROW + D + 1] = weight;
    }
  }
  for (int n = NW / 2; n > 0; n /= 2) {
    if (warp >= n && warp < 2 * n) {
      TQ_UNROLL for (int g = 0; g < G; ++g) {
        TQ_UNROLL for (int i = 0; i < N; ++i) {
          room[(((warp - n) * G + g) * N + i) * 32 + lane] = st.acc[g][i];
        }
      }
    }
    TQ_BARRIER();
    if (warp < n) {
      TQ_UNROLL for (int g = 0; g < G; ++g) {
        TQ_UNROLL for (int i = 0; i < N; ++i) {
          st.acc[g][i] += room[((warp * G + g) * N + i) * 32 + lane];
        }
      }
    }
    TQ_BARRIER();
  }
  if (warp == 0 && lane < lanes) {
    TQ_UNROLL for (int g = 0; g < G; ++g) {
      TQ_UNROLL for (int i = 0; i < N; ++i) out[g * ROW + lane * N + i] = st.acc[g][i];
    }
  }
}

// The rotated query of head `row`: q * s, signs, transform, signs, softmax scale. N = D / 32.
template <int N, class Q, class E>
TQ_FN void tq_turn_query(TQ_IN Q* q, TQ_IN E* equaliser, TQ_REF float* x, int lane) {
  TQ_UNROLL for (int i = 0; i < N; ++i) {
    const int d = lane * N + i;
    x[i] = tq_signed(float(q[d]) * float(equaliser[d]), 0, d);
  }
  tq_transform<N>(x, lane);
  TQ_UNROLL for (int i = 0; i < N; ++i) x[i] = tq_signed(x[i] * ROOT, 1, lane * N + i);
}

// q.mu * SCALE of one head and one segment, in every lane.
template <class Q, class M>
TQ_FN float tq_offset(TQ_IN Q* q, TQ_IN M* mean, int lane) {
  float dot = 0.f;
  for (int d = lane; d < D; d += 32) dot = TQ_FMA(float(q[d]), float(mean[d]), dot);
  return tq_sum(dot) * SCALE;
}
"""
