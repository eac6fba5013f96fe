"""Scripts that find what cannot be read well on a page."""

FAINT_TEXTS = """() => {
  const rgba = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return colour.startsWith("color(srgb") ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
  };
  const over = ([r, g, b, a], [x, y, z]) => [a * r + (1 - a) * x, a * g + (1 - a) * y, a * b + (1 - a) * z, 1];
  const light = (colour) => {
    const linear = (each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.map((each) => linear(each / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const parent = (element) => (element.matches("dialog") ? document.body : element.parentElement);
  const above = (element) => (element ? [element, ...above(parent(element))] : []);
  const ground = (element) => above(element).reverse().map((each) => rgba(getComputedStyle(each).backgroundColor))
    .reduce((under, colour) => over(colour, under), [255, 255, 255, 1]);
  const faint = [];
  const check = (element, colour, under, text) => {
    const { fontSize, fontWeight } = getComputedStyle(element);
    const [dark, bright] = [light(over(colour, under)), light(under)].sort((one, other) => one - other);
    const ratio = (bright + 0.05) / (dark + 0.05);
    const large = parseFloat(fontSize) >= 24 || (parseFloat(fontSize) >= 18.66 && fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) faint.push(`${ratio.toFixed(2)} ${text.trim().slice(0, 40)}`);
  };
  const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { parentElement: element, textContent: text } = texts.currentNode;
    if (!text.trim() || element.closest("script, noscript, option, :disabled") || !shown(element)) continue;
    const drawing = element.closest("svg"), box = drawing && element.closest("g")?.querySelector(".box");
    const colour = rgba(getComputedStyle(element)[drawing ? "fill" : "color"]);
    for (const each of above(element)) colour[3] *= getComputedStyle(each).opacity;
    check(element, colour, box ? rgba(getComputedStyle(box).fill) : ground(drawing ?? element), text);
  }
  for (const element of document.querySelectorAll("[placeholder]")) {
    if (!element.placeholder || !shown(element)) continue;
    const { color, opacity } = getComputedStyle(element, "::placeholder");
    const [r, g, b, a] = rgba(color);
    check(element, [r, g, b, a * opacity], ground(element), element.placeholder);
  }
  return faint;
}"""
"""Returns ratio and text of what has less contrast than WCAG AA asks for: 4.5, or 3 where letters are large."""

CUT_PLACEHOLDERS = """() => [...document.querySelectorAll("input[placeholder]")].filter((element) => {
  const { font, paddingLeft, paddingRight } = getComputedStyle(element);
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.font = font;
  const room = element.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
  return element.checkVisibility() && canvas.measureText(element.placeholder).width > room;
}).map((element) => element.placeholder)"""
"""Returns the placeholders for which their fields are too narrow."""
