// All points of a run as a Parquet file, made here by hyparquet-writer: the service needs no library for it.

import { address, askFile } from "../service.js";

const COLUMNS = { name: "STRING", rank: "INT32", step: "DOUBLE", at: "DOUBLE", value: "DOUBLE" };

export async function saveParquet(id) {
  const answer = await askFile(address(`api/runs/${id}/points`, { format: "json" }));
  const { parquetWriteBuffer } = await import("../npm/hyparquet-writer/src/index.js");
  const data = await readColumns(answer.body);
  const columnData = Object.entries(COLUMNS).map(([name, type]) => ({ name, type, data: data[name] }));
  save(new Blob([parquetWriteBuffer({ columnData })]), `run-${id}.parquet`);
}

// Reads a list of objects that has one of them in each line, so that only the numbers stay in memory.
async function readColumns(body) {
  const data = Object.fromEntries(Object.keys(COLUMNS).map((name) => [name, []]));
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    const lines = (rest + piece.value).split("\n");
    rest = lines.pop();
    lines.forEach((line) => addLine(data, line));
  }
  addLine(data, rest);
  return data;
}

function addLine(data, line) {
  if (line.startsWith("{")) {
    const point = JSON.parse(line.replace(/,$/, ""));
    Object.keys(COLUMNS).forEach((name) => data[name].push(point[name]));
  }
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
