// From a curve of the service to one that can be drawn over an axis. Pure.

import { valueAt } from "./numbers.js";

// Returns { x, y, low, high, info }, x ascending. startedAt: of the run, seconds since the epoch. axisCurve: the
// metric that is the axis, if it is one. how: { axis, range }.
export function curveToDraw(curve, { axis, range }, startedAt, axisCurve) {
  const xs = positions(curve, axis, startedAt, axisCurve);
  const inRange = (x) => x !== null && Number.isFinite(x) && (!range || (x >= range[0] && x <= range[1]));
  const order = [...xs.keys()].filter((at) => inRange(xs[at])).sort((one, other) => xs[one] - xs[other] || one - other);
  const pick = (values) => order.map((at) => values[at]);
  const [low, high] = curve.low.length ? [pick(curve.low), pick(curve.high)] : [[], []];
  const y = pick(curve.value);
  const extremes = [...y, ...low, ...high].filter((value) => value !== null);
  const info = {
    points: curve.points,
    last: curve.value.findLast((value) => value !== null) ?? null,
    low: extremes.length ? extremes.reduce((one, other) => Math.min(one, other)) : null,
    high: extremes.length ? extremes.reduce((one, other) => Math.max(one, other)) : null,
  };
  const drawn = { x: pick(xs), y, low, high, info };
  return axis === "step" || axis === "time" ? drawn : { ...merged(drawn), info };
}

// Points at the same place of the axis (all steps of an epoch, say) become one: their mean, and their extremes.
function merged({ x, y, low, high }) {
  const groups = [];
  x.forEach((place, at) => {
    if (groups.at(-1)?.place !== place) {
      groups.push({ place, values: [], low: Infinity, high: -Infinity });
    }
    const group = groups.at(-1);
    if (y[at] !== null) {
      group.values.push(y[at]);
      group.low = Math.min(group.low, low[at] ?? y[at]);
      group.high = Math.max(group.high, high[at] ?? y[at]);
    }
  });
  const ofGroup = (value) => groups.map((group) => (group.values.length ? value(group) : null));
  return {
    x: groups.map((group) => group.place),
    y: ofGroup(({ values }) => values.reduce((sum, value) => sum + value, 0) / values.length),
    low: ofGroup((group) => group.low),
    high: ofGroup((group) => group.high),
  };
}

function positions(curve, axis, startedAt, axisCurve) {
  if (axis === "step") {
    return curve.step;
  }
  if (axis === "time") {
    return curve.at.map((at) => at - (startedAt ?? curve.at[0]));
  }
  return curve.at.map((at) => (axisCurve ? valueAt(axisCurve, at) : null));
}
