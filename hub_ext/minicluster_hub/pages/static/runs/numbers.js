// Numbers of curves: as text, smoothed, looked up. Pure.

export function numberText(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) {
    return "–";
  }
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) {
    return value.toExponential(3).replace(/\.?0+e/, "e");
  }
  return String(Number(value.toPrecision(Math.max(5, Math.ceil(Math.log10(size + 1))))));
}

// Seconds as "45 s", "3:20" or "2:03:20".
export function durationText(seconds) {
  if (Math.abs(seconds) < 60) {
    return `${Number(seconds.toPrecision(3))} s`;
  }
  const whole = Math.round(Math.abs(seconds));
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return `${seconds < 0 ? "-" : ""}${hours ? `${hours}:${two(minutes)}` : minutes}:${two(whole % 60)}`;
}

// The exponential moving average, corrected for its start at 0. weight: 0 to 1, of what was before.
export function smoothed(values, weight) {
  let [mean, left] = [0, 1];
  return values.map((value) => {
    if (value === null) {
      return null;
    }
    mean = weight * mean + (1 - weight) * value;
    left *= weight;
    return mean / (1 - left);
  });
}

// The index of the last of these ascending numbers that is at most x; -1 if there is none.
export function lastAtMost(xs, x) {
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    [low, high] = xs[middle] <= x ? [middle + 1, high] : [low, middle];
  }
  return low - 1;
}

// The value at the point nearest to x; null outside of the curve.
export function nearest(xs, ys, x) {
  if (!xs.length || x < xs[0] || x > xs.at(-1)) {
    return null;
  }
  const at = lastAtMost(xs, x);
  const next = at + 1 < xs.length && xs[at + 1] - x < x - xs[at] ? at + 1 : at;
  return ys[next];
}

// A metric's value at a moment: the logged one if there is one, else on the line between its neighbours.
export function valueAt(curve, at) {
  const before = lastAtMost(curve.at, at);
  if (before < 0 || curve.value[before] === null) {
    return null;
  }
  if (curve.at[before] === at) {
    return curve.value[before];
  }
  const [from, to] = [curve.at[before], curve.at[before + 1]];
  const [low, high] = [curve.value[before], curve.value[before + 1]];
  return to === undefined || high === null ? null : low + ((high - low) * (at - from)) / (to - from);
}
