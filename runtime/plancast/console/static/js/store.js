// What a person chose, kept in the browser. Storage may be forbidden or full: then it lasts as long as the page.

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
    // In `memory`, then.
  }
}
