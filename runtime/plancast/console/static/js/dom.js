// Creates all elements of the console. Data is always inserted as text; nothing parses HTML.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "open", "indeterminate"]);

/** An element: `h("p", {class: "note", onclick: f}, "text", child, null)`. Null and false are left out. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** An SVG element. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...present(children));
  return element;
}

/** Children without null and false. */
export function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Replaces the children of an element. */
export function put(element, ...children) {
  element.replaceChildren(...present(children));
  return element;
}

/** Renders `items` in order. Elements of unchanged items are kept, with their focus and scroll position. */
export function reconcile(parent, items, key, make) {
  const before = new Map();
  for (const child of parent.children) before.set(child.dataset.key, child);
  let place = parent.firstElementChild;
  for (const item of items) {
    const id = String(key(item));
    const print = JSON.stringify(item);
    let element = before.get(id);
    before.delete(id);
    if (!element || element.dataset.print !== print) {
      const made = make(item);
      made.dataset.key = id;
      made.dataset.print = print;
      if (element) {
        if (element === place) place = made;
        element.replaceWith(made);
      }
      element = made;
    }
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const gone of before.values()) gone.remove();
}
