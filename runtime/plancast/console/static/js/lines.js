// Line diff of two texts. Pure.

const MOST = 4_000_000;
const AROUND = 3;

/** Rows of `{kind: "same"|"changed"|"added"|"removed", left, right}`; null where a side has no line. */
export function changes(left, right) {
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start += 1;
  let endLeft = left.length;
  let endRight = right.length;
  while (endLeft > start && endRight > start && left[endLeft - 1] === right[endRight - 1]) {
    endLeft -= 1;
    endRight -= 1;
  }
  const same = (text) => ({ kind: "same", left: text, right: text });
  return [
    ...left.slice(0, start).map(same),
    ...paired(between(left.slice(start, endLeft), right.slice(start, endRight))),
    ...left.slice(endLeft).map(same),
  ];
}

/** Steps of a longest common subsequence; for texts that are too long, all lines of one, then of the other. */
function between(left, right) {
  const steps = [];
  if (left.length * right.length > MOST) {
    for (const text of left) steps.push(["removed", text]);
    for (const text of right) steps.push(["added", text]);
    return steps;
  }
  const width = right.length + 1;
  const longest = new Uint32Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] =
        left[i] === right[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  let i = 0;
  let j = 0;
  while (i < left.length || j < right.length) {
    if (i < left.length && j < right.length && left[i] === right[j]) {
      steps.push(["same", left[i]]);
      i += 1;
      j += 1;
    } else if (j >= right.length || (i < left.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) {
      steps.push(["removed", left[i]]);
      i += 1;
    } else {
      steps.push(["added", right[j]]);
      j += 1;
    }
  }
  return steps;
}

/** Pairs removed and added lines at the same position. */
function paired(steps) {
  const rows = [];
  let gone = [];
  let come = [];
  const flush = () => {
    for (let index = 0; index < Math.max(gone.length, come.length); index += 1) {
      const left = gone[index] ?? null;
      const right = come[index] ?? null;
      rows.push({ kind: left === null ? "added" : right === null ? "removed" : "changed", left, right });
    }
    gone = [];
    come = [];
  };
  for (const [kind, text] of steps) {
    if (kind === "removed") gone.push(text);
    else if (kind === "added") come.push(text);
    else {
      flush();
      rows.push({ kind, left: text, right: text });
    }
  }
  flush();
  return rows;
}

/** Folds long runs of equal lines into `{kind: "fold", rows}`, unless the texts are equal. */
export function folded(rows) {
  if (rows.every((row) => row.kind === "same")) return rows;
  const near = new Set();
  rows.forEach((row, index) => {
    if (row.kind === "same") return;
    for (let each = index - AROUND; each <= index + AROUND; each += 1) near.add(each);
  });
  const made = [];
  let hidden = [];
  const flush = () => {
    if (hidden.length > 1) made.push({ kind: "fold", rows: hidden });
    else made.push(...hidden);
    hidden = [];
  };
  rows.forEach((row, index) => {
    if (near.has(index)) {
      flush();
      made.push(row);
    } else hidden.push(row);
  });
  flush();
  return made;
}
