// The lanes of a threadgroup as host threads: barriers, simd exchange, poisoned threadgroup memory.
// Every barrier and simd op must be reached by all lanes of its group from the same source line,
// else the launch stops and says which lines wait. Threadgroup memory starts as 0xFF bytes in every
// group and its size is counted. Only barriers order memory as ThreadSanitizer sees it; simd ops do
// not, as on the GPU. Simdgroups have 32 lanes; one threadgroup runs at a time.
#pragma once
#include <unistd.h>
#include <sys/syscall.h>
#include <linux/futex.h>
#include <atomic>
#include <bit>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;
typedef half float16_t;
typedef bfloat bfloat16_t;
#define LANES_VEC(T)                                  \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)))
LANES_VEC(float);
LANES_VEC(half);
LANES_VEC(int);
LANES_VEC(uint);
LANES_VEC(short);
LANES_VEC(ushort);
LANES_VEC(char);
LANES_VEC(uchar);
LANES_VEC(long);
LANES_VEC(ulong);
LANES_VEC(bool);
#undef LANES_VEC

// Debian's libgcc lacks it: float to bfloat, to nearest even.
extern "C" __attribute__((weak)) __bf16 __truncsfbf2(float x) {
  const uint u = std::bit_cast<uint>(x);
  const uint rounded = x != x ? u | 0x400000 : u + 0x7fff + (u >> 16 & 1);
  return std::bit_cast<__bf16>((ushort)(rounded >> 16));
}

namespace shim {
template <class T>
struct vinfo {
  using E = T;
  static constexpr int N = 1;
};
template <class T, int N_>
struct vinfo<T __attribute__((ext_vector_type(N_)))> {
  using E = T;
  static constexpr int N = N_;
};
template <class V, class... A>
inline V make(A... a) {  // Metal's vector constructors: splat, convert, concatenate
  using E = typename vinfo<V>::E;
  constexpr int N = vinfo<V>::N, M = (0 + ... + vinfo<A>::N);
  static_assert(M == N || (sizeof...(A) == 1 && M == 1),
                "wrong number of components in a vector constructor");
  V r{};
  int k = 0;
  auto put = [&](auto x) {
    using X = decltype(x);
    if constexpr (vinfo<X>::N == 1)
      r[k++] = (E)x;
    else
      for (int i = 0; i < vinfo<X>::N; ++i) r[k++] = (E)x[i];
  };
  (put(a), ...);
  if (M == 1)
    for (; k < N; ++k) r[k] = r[0];
  return r;
}

struct Abort {};
enum Kind { K_TG = 1, K_SG = 2, K_SIMD = 3 };
struct alignas(64) Bar {
  std::atomic<int> gen{0}, cnt{0}, site{0};
  int n = 0;
};
struct Group;
struct Lane {
  uint tid = 0, lane = 0, sg = 0, par = 0;
  Group* g = nullptr;
  std::atomic<Bar*> wbar{nullptr};
  std::atomic<int> wgen{0}, wsite{0};
  std::atomic<bool> done{false};
};
struct Mem {
  void* p;
  size_t n;
};
struct Group {
  uint n;
  Bar tg;
  std::vector<Bar> sg;
  std::vector<Lane> lanes;
  std::vector<std::atomic<uint>> slots;  // slots [simdgroup][parity][lane][16 words]
  std::mutex mu;
  std::vector<Mem> mem;
  std::atomic<bool> stop{false};
  std::string err;
  explicit Group(uint n) : n(n), sg((n + 31) / 32), lanes(n), slots((n + 31) / 32 * 2 * 32 * 16) {
    tg.n = n;
    for (uint i = 0; i < sg.size(); ++i) sg[i].n = n - 32 * i < 32 ? n - 32 * i : 32;
    for (uint i = 0; i < n; ++i) {
      lanes[i].tid = i;
      lanes[i].lane = i & 31;
      lanes[i].sg = i / 32;
      lanes[i].g = this;
    }
  }
  void wake(std::atomic<int>& w) {
    syscall(SYS_futex, (int*)&w, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
  void fail(std::string m) {
    {
      std::lock_guard<std::mutex> l(mu);
      if (err.empty()) err = m;
    }
    stop.store(true);
    tg.gen.fetch_add(1 << 20);
    wake(tg.gen);
    for (auto& b : sg) {
      b.gen.fetch_add(1 << 20);
      wake(b.gen);
    }
  }
};
inline thread_local Lane* cur = nullptr;
inline std::string where(int s) {
  const char* k[] = {"?", "threadgroup_barrier", "simdgroup_barrier", "simd op"};
  return std::string(k[(s >> 20) & 3]) + " at line " + std::to_string(s & 0xfffff);
}
inline void arrive(
    Bar& b, int kind, int line,
    bool order) {  // order=false: hardware-ordered, but no happens-before edge for TSan
  Lane& me = *cur;
  Group& g = *me.g;
  const int site = kind << 20 | (line & 0xfffff);
  if (g.stop.load(std::memory_order_relaxed)) throw Abort{};
  int s = 0;
  if (!b.site.compare_exchange_strong(s, site, std::memory_order_relaxed) && s != site) {
    g.fail("diverged: lane " + std::to_string(me.tid) + " is at " + where(site) +
           ", another lane of its group at " + where(s));
    throw Abort{};
  }
  const int gen = b.gen.load(std::memory_order_relaxed);
  if (!order) std::atomic_thread_fence(std::memory_order_seq_cst);
  if (b.cnt.fetch_add(1, order ? std::memory_order_acq_rel : std::memory_order_relaxed) + 1 ==
      b.n) {
    b.cnt.store(0, std::memory_order_relaxed);
    b.site.store(0, std::memory_order_relaxed);
    b.gen.fetch_add(1, order ? std::memory_order_release : std::memory_order_relaxed);
    g.wake(b.gen);
  } else {
    me.wsite.store(site, std::memory_order_relaxed);
    me.wgen.store(gen, std::memory_order_relaxed);
    me.wbar.store(&b, std::memory_order_relaxed);
    while (b.gen.load(order ? std::memory_order_acquire : std::memory_order_relaxed) == gen)
      syscall(SYS_futex, (int*)&b.gen, FUTEX_WAIT_PRIVATE, gen, nullptr, nullptr, 0);
    me.wbar.store(nullptr, std::memory_order_relaxed);
  }
  if (!order) std::atomic_thread_fence(std::memory_order_seq_cst);
  if (g.stop.load(std::memory_order_relaxed)) throw Abort{};
}
template <class T>
struct Got {
  std::atomic<uint>* s;
  T operator[](uint l) const {
    union {
      uint w[16];
      T v;
    } u;
    for (uint i = 0; i < (sizeof(T) + 3) / 4; ++i)
      u.w[i] = s[(l & 31) * 16 + i].load(std::memory_order_relaxed);
    return u.v;
  }
};
template <class T>
inline Got<T> exchange(
    T v,
    int line) {  // every lane gives v; [l] reads lane l's. Two buffers, so one barrier is enough
  static_assert(sizeof(T) <= 64, "too large to exchange");
  Lane& me = *cur;
  Group& g = *me.g;
  std::atomic<uint>* s = &g.slots[(me.sg * 2 + me.par) * 512];
  me.par ^= 1;
  union {
    uint w[16];
    T v;
  } u{};
  u.v = v;
  for (uint i = 0; i < (sizeof(T) + 3) / 4; ++i)
    s[me.lane * 16 + i].store(u.w[i], std::memory_order_relaxed);
  arrive(g.sg[me.sg], K_SIMD, line, false);
  return {s};
}
template <class T, class F>
inline T reduce(T v, F f, int line) {
  auto s = exchange(v, line);
  T r = s[0];
  for (uint i = 1; i < (uint)cur->g->sg[cur->sg].n; ++i) r = f(r, s[i]);
  return r;
}
inline void tg_mem(
    void* p,
    size_t n) {  // called at each threadgroup declaration by every lane; the first one poisons
  Group& g = *cur->g;
  std::lock_guard<std::mutex> l(g.mu);
  for (auto& m : g.mem)
    if (m.p == p) return;
  g.mem.push_back({p, n});
  memset(p, 0xFF, n);
}
struct Launch {
  int64_t grid[3], tg[3];
  double timeout;
  int64_t max_tg_mem;
};
struct Pos {
  uint3 tpg, tpt, gpg, gpgn, tptg;
  uint tit, lane, sg, sgn;
};
struct Result {
  std::string err;
  int64_t tg_bytes = 0;
};
template <class F>
Result launch(const Launch& L, F f) {
  Result r;
  uint3 ng;
  for (int i = 0; i < 3; ++i) ng[i] = (uint)((L.grid[i] + L.tg[i] - 1) / L.tg[i]);
  for (uint z = 0; z < ng.z; ++z)
    for (uint y = 0; y < ng.y; ++y)
      for (uint x = 0; x < ng.x; ++x) {
        uint3 at = {x, y, z}, sz;
        for (int i = 0; i < 3; ++i) {
          int64_t left = L.grid[i] - (int64_t)at[i] * L.tg[i];
          sz[i] = (uint)(left < L.tg[i] ? left : L.tg[i]);
        }
        const uint n = sz.x * sz.y * sz.z;
        Group g(n);
        std::vector<std::thread> th;
        th.reserve(n);
        std::atomic<uint> left{n};
        for (uint i = 0; i < n; ++i)
          th.emplace_back([&, i] {
            cur = &g.lanes[i];
            Pos p;
            p.tpt = uint3{i % sz.x, i / sz.x % sz.y, i / (sz.x * sz.y)};
            p.gpg = at;
            p.gpgn = ng;
            p.tptg = sz;
            for (int k = 0; k < 3; ++k) p.tpg[k] = at[k] * (uint)L.tg[k] + p.tpt[k];
            p.tit = i;
            p.lane = i & 31;
            p.sg = i / 32;
            p.sgn = (n + 31) / 32;
            try {
              f(p);
            } catch (Abort&) {
            }
            g.lanes[i].done.store(true, std::memory_order_relaxed);
            left.fetch_sub(1, std::memory_order_relaxed);
          });
        std::atomic<bool> over{false};
        std::thread dog([&] {  // a stuck group: every live lane waits and no generation has moved
          auto t0 = std::chrono::steady_clock::now();
          int same = 0;
          while (!over.load(std::memory_order_relaxed) && !g.stop.load()) {
            timespec ts{0, 2000000};
            int32_t v = 0;
            syscall(SYS_futex, (int*)&over, FUTEX_WAIT_PRIVATE, v, &ts, nullptr, 0);
            uint fin = 0, stuck = 0;
            int st = 0, st2 = 0;
            for (auto& l : g.lanes) {
              if (l.done.load(std::memory_order_relaxed)) {
                ++fin;
                continue;
              }
              Bar* b = l.wbar.load(std::memory_order_relaxed);
              if (b && b->gen.load(std::memory_order_relaxed) ==
                           l.wgen.load(std::memory_order_relaxed)) {
                ++stuck;
                int s = l.wsite.load(std::memory_order_relaxed);
                if (!st)
                  st = s;
                else if (s != st)
                  st2 = s;
              }
            }
            same = (fin < n && fin + stuck == n) ? same + 1 : 0;
            if (same >= 10) {
              g.fail("stuck: " + std::to_string(stuck) + " of " + std::to_string(n) +
                     " lanes wait at " + where(st) + (st2 ? " and " + where(st2) : "") + ", " +
                     std::to_string(fin) + " lanes have returned");
              break;
            }
            if (std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count() >
                L.timeout) {
              g.fail("timeout: one threadgroup ran longer than " + std::to_string(L.timeout) +
                     " s");
              timespec w{2, 0};
              nanosleep(&w, nullptr);
              if (left.load()) {
                fprintf(stderr, "shim: lanes do not stop, giving up\n");
                _exit(97);
              }
              break;
            }
          }
        });
        for (auto& t : th) t.join();
        over.store(true);
        dog.join();
        int64_t b = 0;
        for (auto& m : g.mem) b += (int64_t)m.n;
        if (b > r.tg_bytes) r.tg_bytes = b;
        if (!g.err.empty()) {
          r.err = g.err + " (threadgroup " + std::to_string(x) + "," + std::to_string(y) + "," +
                  std::to_string(z) + ")";
          return r;
        }
        if (b > L.max_tg_mem) {
          r.err = "threadgroup memory " + std::to_string(b) + " bytes exceeds " +
                  std::to_string(L.max_tg_mem);
          return r;
        }
      }
  return r;
}
}  // namespace shim
