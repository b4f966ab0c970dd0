// What its owner writes about a run: tags, a note, a star.

import { ask } from "../service.js";

const MOST_TAGS = 20;
const TAG = /^[^\s,\x00-\x1f][^,\x00-\x1f]{0,63}$/;

// Returns the run as the service has it then.
export function setLabels(id, labels) {
  return ask(`api/runs/${id}/labels`, { method: "PUT", json: labels });
}

// "one, two" as a list. Throws an error that says what is wrong with a tag.
export function tagsOf(text) {
  const tags = [...new Set(text.split(",").map((tag) => tag.trim()).filter(Boolean))];
  const wrong = tags.find((tag) => !TAG.test(tag));
  if (wrong !== undefined) {
    throw new Error(`The tag "${wrong.slice(0, 70)}" is too long: a tag has at most 64 characters.`);
  }
  if (tags.length > MOST_TAGS) {
    throw new Error(`A run has at most ${MOST_TAGS} tags; these are ${tags.length}.`);
  }
  return tags;
}
