// Reads Prometheus' text format, as far as plots need it: samples summed over labels, and histograms.

/** name -> [{ labels, value }] */
export function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const found = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    const value = found[3] === "+Inf" ? Infinity : Number(found[3]);
    if (!samples.has(found[1])) samples.set(found[1], []);
    samples.get(found[1]).push({ labels, value });
  }
  return samples;
}

/** The sum over all labels, or undefined where the metric is absent. */
export function total(samples, name) {
  return samples.get(name)?.reduce((sum, s) => sum + s.value, 0);
}

/** How many observations fell at or below each bound. */
function buckets(samples, name, matches = () => true) {
  const counts = new Map();
  for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
    if (!matches(labels)) continue;
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  return counts;
}

/** A quantile of what was observed between two readings; undefined where nothing was. */
export function quantile(before, after, name, q) {
  const old = buckets(before, name);
  return within(
    [...buckets(after, name)].map(([bound, n]) => [bound, n - (old.get(bound) ?? 0)]),
    q,
  );
}

/** A quantile of everything observed so far, of the series whose labels match. */
export function histogramQuantile(samples, name, q, matches) {
  return within([...buckets(samples, name, matches)], q);
}

function within(counted, q) {
  const counts = counted.sort((a, b) => a[0] - b[0]);
  const n = counts.at(-1)?.[1] ?? 0;
  if (n <= 0) return undefined;
  let [low, below] = [0, 0];
  for (const [bound, upTo] of counts) {
    if (upTo >= q * n) {
      if (bound === Infinity) return low;
      // Observations are taken as spread evenly within a bucket.
      return low + ((bound - low) * (q * n - below)) / Math.max(upTo - below, 1);
    }
    [low, below] = [bound, upTo];
  }
  return low;
}
