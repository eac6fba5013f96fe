// User preferences in the browser's storage; in memory when that is forbidden or full.

const memory = new Map();

export function kept(name, otherwise) {
  try {
    return localStorage.getItem(`plancast.${name}`) ?? memory.get(name) ?? otherwise;
  } catch {
    return memory.get(name) ?? otherwise;
  }
}

export function keep(name, value) {
  memory.set(name, value);
  try {
    localStorage.setItem(`plancast.${name}`, value);
  } catch {
    // Kept in `memory`.
  }
}
