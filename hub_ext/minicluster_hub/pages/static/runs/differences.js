// What differs between ticked runs.

export function showDifferences() {}
