"""The CUDA text of the row product: up to 32 rows times weights of 2 to 8 bits, mxfp4 or 16 bits.

Tensor cores take 16 outputs x 16 inputs of the weights as codes (whole numbers, exact in either
16-bit type) and the rows as columns, eight at a time. A column is summed without regard to the
others, so that a row's result has the same bits at every width. Scale and bias of a group are
applied to its sum in float32, which is closer to the weights than rounding each of them.

Lanes: group = lane / 4 is an output and a row, quad = lane % 4 a share of the inputs. A unit is
UNIT consecutive inputs of one quantization group; a lane holds PER = UNIT / 4 neighbours of it. A
warp takes every NW-th unit; at the end the warps' sums are added in their order. NW must depend on
the number of inputs alone, never on the rows or the outputs.

Constants: BITS, CODES (0 affine, 1 mxfp4, 2 none), UNIT, GROUP, HALF (fp16, not bf16). Sizes: MT
tiles of outputs and NT tiles of rows of a block, NW warps, GATHER (each row has an expert).
"""

from swiftlm_engine.turboquant.kernels.dialect import Text
from swiftlm_engine.turboquant.kernels.tensor import MULTIPLY_HALVES, PERMUTE

_HEADER = (
    PERMUTE
    + r"""
#ifndef TQ_EMULATED"""
    + MULTIPLY_HALVES
    + r"""
TQ_FN void tq_multiply_bfloats(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Pairs of bf16, less 128 each; sm_80 has no subtraction of them.
TQ_FN u32 tq_less_128(u32 a) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0x3F803F80u), "r"(0xC300C300u));
  return d;
}
#endif

#define PER (UNIT / 4)
#define BYTES (PER * BITS / 8)
#define WORDS ((BYTES + 3) / 4)
#define PAIRS (PER / 2)
#if HALF
#define TQ_MULTIPLY tq_multiply_halves
#define TQ_ONES 0x3C003C00u
#else
#define TQ_MULTIPLY tq_multiply_bfloats
#define TQ_ONES 0x3F803F80u
#endif

// A lane's part of a unit of weights, as wide as its alignment allows.
TQ_FN void tq_fetch(u32* to, const unsigned char* p) {
  if constexpr (BYTES % 16 == 0) {
    TQ_UNROLL for (int i = 0; i < BYTES / 16; ++i) {
      const uint4 v = __ldcs((const uint4*)p + i);
      to[4 * i] = v.x;
      to[4 * i + 1] = v.y;
      to[4 * i + 2] = v.z;
      to[4 * i + 3] = v.w;
    }
  } else if constexpr (BYTES % 8 == 0) {
    const uint2 v = __ldcs((const uint2*)p);
    to[0] = v.x;
    to[1] = v.y;
  } else if constexpr (BYTES % 4 == 0) {
    TQ_UNROLL for (int i = 0; i < WORDS; ++i) to[i] = __ldcs((const u32*)p + i);
  } else if constexpr (BYTES % 2 == 0) {
    TQ_UNROLL for (int i = 0; i < WORDS; ++i) to[i] = 0;
    TQ_UNROLL for (int i = 0; i < BYTES / 2; ++i) {
      to[i / 2] |= (u32)__ldcs((const unsigned short*)p + i) << (16 * (i % 2));
    }
  } else {
    TQ_UNROLL for (int i = 0; i < WORDS; ++i) to[i] = 0;
    TQ_UNROLL for (int i = 0; i < BYTES; ++i) to[i / 4] |= (u32)__ldcs(p + i) << (8 * (i % 4));
  }
}

TQ_FN u32 tq_code(const u32* words, int i) {
  const int bit = i * BITS, word = bit / 32, shift = bit % 32;
  u32 v = words[word] >> shift;
  if (shift + BITS > 32) v |= words[word + 1] << (32 - shift);
  return v & ((1u << (BITS % 16)) - 1u);
}

// Two codes as two numbers: an exponent in front makes them 1024 + code, or 128 + code.
TQ_FN u32 tq_numbers(u32 low, u32 high) {
#if HALF
  const u32 both = low | high << 16 | 0x64006400u, base = 0x64006400u;
  const __half2 less = __hsub2(*(const __half2*)&both, *(const __half2*)&base);
  return *(const u32*)&less;
#else
  if constexpr (BITS < 8) return tq_less_128(low | high << 16 | 0x43004300u);
  const u32 a = TQ_BITS(__int2float_rn((int)low)), b = TQ_BITS(__int2float_rn((int)high));
  return tq_permute(a, b, 0x7632u);
#endif
}

// The high and low bytes of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
#if HALF
#define FP4_HIGH 0x3E3C3800u, 0x46444240u
#define FP4_LOW 0u, 0u
#else
#define FP4_HIGH 0x3F3F3F00u, 0x40404040u
#define FP4_LOW 0xC0800000u, 0xC0804000u
#endif

// A lane's weights as pairs of numbers, in the order in which tq_rows has the inputs.
TQ_FN void tq_pairs(u32* pair, const u32* words) {
#if CODES == 2
  TQ_UNROLL for (int i = 0; i < PAIRS; ++i) pair[i] = words[i];
#elif CODES == 1
  TQ_UNROLL for (int i = 0; i < WORDS; ++i) {
    const u32 w = words[i], size = w & 0x77777777u;
    TQ_UNROLL for (int j = 0; j < 2; ++j) {
      const u32 some = w >> (16 * j), which = size >> (16 * j);
      const u32 high = tq_permute(FP4_HIGH, which), low = tq_permute(FP4_LOW, which);
      pair[4 * i + 2 * j] =
          tq_permute(low, high, 0x5140u) | (some << 12 & 0x8000u) | (some << 24 & 0x80000000u);
      pair[4 * i + 2 * j + 1] =
          tq_permute(low, high, 0x7362u) | (some << 4 & 0x8000u) | (some << 16 & 0x80000000u);
    }
  }
#elif BITS == 4
  TQ_UNROLL for (int i = 0; i < WORDS; ++i) {
    TQ_UNROLL for (int j = 0; j < 4; ++j) {
      pair[4 * i + j] = tq_numbers(words[i] >> (4 * j) & 0x000f000fu, 0u);
    }
  }
#else
  TQ_UNROLL for (int i = 0; i < PAIRS; ++i) {
    pair[i] = tq_numbers(tq_code(words, 2 * i), tq_code(words, 2 * i + 1));
  }
#endif
}

// A lane's inputs of one row.
template <class Z>
TQ_FN void tq_rows(u32* pair, const Z* p) {
  u32 x[PAIRS];
  TQ_UNROLL for (int i = 0; i < PAIRS / 4; ++i) {
    const uint4 v = ((const uint4*)p)[i];
    x[4 * i] = v.x;
    x[4 * i + 1] = v.y;
    x[4 * i + 2] = v.z;
    x[4 * i + 3] = v.w;
  }
#if CODES == 0 && BITS == 4  // codes j and j + 4 of a word lie 16 bits apart
  TQ_UNROLL for (int i = 0; i < PAIRS / 4; ++i) {
    TQ_UNROLL for (int j = 0; j < 4; ++j) {
      pair[4 * i + j] =
          tq_permute(x[4 * i + j / 2], x[4 * i + 2 + j / 2], j % 2 ? 0x7632u : 0x5410u);
    }
  }
#else
  TQ_UNROLL for (int i = 0; i < PAIRS; ++i) pair[i] = x[i];
#endif
}
"""
)


def row_product(gather: bool) -> Text:
    inputs = ["x", "w", *(["experts"] if gather else []), "scales", "biases"]
    return Text("rowproduct", tuple(inputs), ("o",), _expert(gather) + _BODY, header=_HEADER)


def _expert(gather: bool) -> str:
    """Which weights, which of the inputs and which of the outputs a block has."""
    if gather:
        return r"""
  const int N = w_shape[1], K = BITS == 16 ? w_shape[2] : w_shape[2] * 32 / BITS;
  const int rows = x_shape[0], first = by * rows / experts_shape[0], last = first, out = by;
  const long skipped = (long)experts[by] * N;
"""
    return r"""
  const int N = w_shape[0], K = BITS == 16 ? w_shape[1] : w_shape[1] * 32 / BITS;
  const int rows = x_shape[0] * x_shape[1], first = by * NT * 8, last = rows - 1, out = first;
  const long skipped = 0;
"""


_BODY = r"""
  const int group = lane >> 2, quad = lane & 3, n0 = bx * MT * 16;
  const int units = K / UNIT, groups = K / GROUP;
  TQ_SHARED float room[NW * NT * 8 * MT * 16];

  const unsigned char* weights[MT][2];
  long scale[MT][2];
  TQ_UNROLL for (int m = 0; m < MT; ++m) {
    TQ_UNROLL for (int h = 0; h < 2; ++h) {
      const int n = n0 + m * 16 + h * 8 + group;
      const long row = skipped + (n < N ? n : N - 1);
      weights[m][h] = (const unsigned char*)w + row * (K / 8 * BITS) + quad * BYTES;
      scale[m][h] = row * groups;
    }
  }
  const Z* inputs[NT];
  TQ_UNROLL for (int t = 0; t < NT; ++t) {
    const int row = first + t * 8 + group;
    inputs[t] = x + (long)(row < last ? row : last) * K + quad * PER;
  }
  float acc[MT][NT][4];
  TQ_UNROLL for (int m = 0; m < MT; ++m) {
    TQ_UNROLL for (int t = 0; t < NT; ++t) {
      TQ_UNROLL for (int r = 0; r < 4; ++r) acc[m][t][r] = 0.f;
    }
  }
  u32 next[MT][2][WORDS];
  if (warp < units) {
    TQ_UNROLL for (int m = 0; m < MT; ++m) {
      TQ_UNROLL for (int h = 0; h < 2; ++h) {
        tq_fetch(next[m][h], weights[m][h] + warp * (4 * BYTES));
      }
    }
  }
  for (int unit = warp; unit < units; unit += NW) {
    u32 words[MT][2][WORDS];
    TQ_UNROLL for (int m = 0; m < MT; ++m) {
      TQ_UNROLL for (int h = 0; h < 2; ++h) {
        TQ_UNROLL for (int i = 0; i < WORDS; ++i) words[m][h][i] = next[m][h][i];
      }
    }
    if (unit + NW < units) {
      TQ_UNROLL for (int m = 0; m < MT; ++m) {
        TQ_UNROLL for (int h = 0; h < 2; ++h) {
          tq_fetch(next[m][h], weights[m][h] + (long)(unit + NW) * (4 * BYTES));
        }
      }
    }
    u32 xs[NT][PAIRS];
    TQ_UNROLL for (int t = 0; t < NT; ++t) tq_rows(xs[t], inputs[t] + (long)unit * UNIT);
    float sums[NT][4], c[MT][NT][4];
    TQ_UNROLL for (int t = 0; t < NT; ++t) {
      TQ_UNROLL for (int r = 0; r < 4; ++r) {
        sums[t][r] = 0.f;
        TQ_UNROLL for (int m = 0; m < MT; ++m) c[m][t][r] = CODES == 2 ? acc[m][t][r] : 0.f;
      }
    }
    TQ_UNROLL for (int m = 0; m < MT; ++m) {
      u32 a[2][PAIRS];
      tq_pairs(a[0], words[m][0]);
      tq_pairs(a[1], words[m][1]);
      TQ_UNROLL for (int i = 0; i < PAIRS; i += 2) {
        TQ_UNROLL for (int t = 0; t < NT; ++t) {
          TQ_MULTIPLY(c[m][t], a[0][i], a[1][i], a[0][i + 1], a[1][i + 1], xs[t][i], xs[t][i + 1]);
        }
      }
    }
    if constexpr (CODES == 0) {
      TQ_UNROLL for (int i = 0; i < PAIRS; i += 2) {
        TQ_UNROLL for (int t = 0; t < NT; ++t) {
          TQ_MULTIPLY(sums[t], TQ_ONES, TQ_ONES, TQ_ONES, TQ_ONES, xs[t][i], xs[t][i + 1]);
        }
      }
    }
    TQ_UNROLL for (int m = 0; m < MT; ++m) {
      float s[2], b[2];
      TQ_UNROLL for (int h = 0; h < 2; ++h) {
        const long at = scale[m][h] + unit * UNIT / GROUP;
#if CODES == 0
        s[h] = float(scales[at]);
        b[h] = float(biases[at]);
#elif CODES == 1
        s[h] = TQ_FLOAT(scales[at] > 0 ? (u32)scales[at] << 23 : 0x400000u);
#endif
      }
      TQ_UNROLL for (int t = 0; t < NT; ++t) {
        TQ_UNROLL for (int r = 0; r < 4; ++r) {
          if constexpr (CODES == 2) {
            acc[m][t][r] = c[m][t][r];
          } else {
            acc[m][t][r] = TQ_FMA(s[r / 2], c[m][t][r], acc[m][t][r]);
            if constexpr (CODES == 0) acc[m][t][r] = TQ_FMA(b[r / 2], sums[t][r % 2], acc[m][t][r]);
          }
        }
      }
    }
  }
  TQ_UNROLL for (int m = 0; m < MT; ++m) {
    TQ_UNROLL for (int t = 0; t < NT; ++t) {
      TQ_UNROLL for (int r = 0; r < 4; ++r) {
        const int row = t * 8 + 2 * quad + r % 2, n = m * 16 + r / 2 * 8 + group;
        room[(warp * (NT * 8) + row) * (MT * 16) + n] = acc[m][t][r];
      }
    }
  }
  TQ_BARRIER();
  for (int i = warp * 32 + lane; i < NT * 8 * MT * 16; i += NW * 32) {
    const int row = i / (MT * 16), n = i % (MT * 16);
    float sum = 0.f;
    TQ_UNROLL for (int v = 0; v < NW; ++v) sum += room[v * (NT * 8 * MT * 16) + i];
    if (first + row <= last && n0 + n < N) o[(long)(out + row) * N + n0 + n] = Z(sum);
  }
"""
