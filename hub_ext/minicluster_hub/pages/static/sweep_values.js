// Values of sweeps as text.

import { numberText } from "./runs/numbers.js";

export function shown(value) {
  if (value === null || value === undefined) {
    return value === null ? "None" : "";
  }
  return typeof value === "number" ? numberText(value) : String(value).slice(0, 60);
}

export function params(named) {
  return Object.entries(named)
    .map(([name, value]) => `${name} = ${shown(value)}`)
    .join(", ");
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) {
    return `${whole} s`;
  }
  return whole < 3600
    ? `${Math.floor(whole / 60)} min ${whole % 60} s`
    : `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}
