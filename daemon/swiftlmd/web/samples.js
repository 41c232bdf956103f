// The last hour of what the monitor shows, kept by this tab: a sample of each status, one per ten
// seconds once it is older than five minutes.

const HOUR_S = 3600;
const FINE_S = 300;
const COARSE_S = 10;
const KEY = "samples";

const sum = (models, name) => models.reduce((total, model) => total + (model.stats?.[name] || 0), 0);

function streamed(models) {
  const found = models.map((model) => model.stats?.stream).filter(Boolean);
  const of = (name) => found.reduce((total, one) => total + (one[name] || 0), 0);
  return { streams: found.length > 0, ssd_bytes: of("bytes"), ssd_hits: of("hits"), ssd_misses: of("misses") };
}

// Counters become rates against the sample before.
export function sampleOf({ models, machine = {} }, before, at) {
  const counts = streamed(models);
  const passed = before ? at - before.at : 0;
  const grown = (name) => Math.max(0, counts[name] - (before?.[name] ?? counts[name]));
  const looked = grown("ssd_hits") + grown("ssd_misses");
  const hits = sum(models, "prefix_cache_hits");
  return { at, ...counts, speed: sum(models, "decode_tokens_per_s"), running: sum(models, "running"),
    waiting: sum(models, "waiting"), used: machine.measured_bytes || machine.used_bytes || 0,
    hit_rate: hits / Math.max(1, hits + sum(models, "prefix_cache_misses")),
    ssd: passed ? grown("ssd_bytes") / passed / 1e9 : 0,
    ssd_hit_rate: looked ? grown("ssd_hits") / looked : before?.ssd_hit_rate ?? 0 };
}

export function thinned(samples, now) {
  let kept = -Infinity;
  return samples.filter(({ at }) => {
    if (at < now - HOUR_S) return false;
    if (at > now - FINE_S) return true;
    if (at < kept + COARSE_S) return false;
    kept = at;
    return true;
  });
}

export function past() {
  try { return JSON.parse(sessionStorage.getItem(KEY)) || []; } catch { return []; }
}

export function remember(status) {
  const now = Date.now() / 1000;
  const samples = past();
  samples.push(sampleOf(status, samples.at(-1), now));
  const kept = thinned(samples, now);
  try { sessionStorage.setItem(KEY, JSON.stringify(kept)); } catch { /* full: the plots are short */ }
}
