// How the pages of models show figures, and what a model takes.

const ANY = -1;
const MOST_VALUES = 64;

// Seconds as milliseconds or seconds; "" for none.
export function time(seconds) {
  if (seconds === null) {
    return "";
  }
  return seconds < 1 ? `${Number((1000 * seconds).toPrecision(3))} ms` : `${Number(seconds.toPrecision(3))} s`;
}

export function perSecond(rate) {
  return rate ? `${Number(rate.toPrecision(3))}` : "0";
}

// A tensor in words: "input: FP32 [any, 64]".
export function tensor(spec) {
  const shape = spec.shape.map((size) => (size === ANY ? "any" : size)).join(", ");
  return `${spec.name}: ${spec.datatype} [${shape}]`;
}

function zeros(spec) {
  const shape = spec.shape.map((size) => (size === ANY ? 1 : size));
  if (shape.reduce((count, size) => count * size, 1) > MOST_VALUES * MOST_VALUES) {
    return [];
  }
  return shape.reduceRight((value, size) => Array.from({ length: size }, () => value), spec.datatype === "BOOL" ? false : 0);
}

// An input that the model takes, as JSON; numbers are zeros.
export function exampleInput({ input_kind: kind, inputs }) {
  if (kind === "json") {
    return "null";
  }
  if (kind === "text") {
    return inputs[0].shape[0] === ANY ? '["some text"]' : '"some text"';
  }
  if (kind === "tensor") {
    return JSON.stringify(zeros(inputs[0]));
  }
  return JSON.stringify(Object.fromEntries(inputs.map((spec) => [spec.name, zeros(spec)])), null, 1);
}

export function takes({ inputs, outputs }) {
  return `Takes ${inputs.map(tensor).join("; ")}. Returns ${outputs.map(tensor).join("; ")}.`;
}
