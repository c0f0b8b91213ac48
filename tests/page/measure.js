// Measures what the page shows: what overlaps, what is too wide, what wraps that should not. A list of complaints.
([width]) => {
  scrollTo(0, 0); // the header stays on top of what scrolls below it
  const root = document.querySelector("dialog[open]") ?? document.body;
  const found = [];
  const nameOf = (element) => {
    const text = (element.getAttribute("aria-label") ?? element.labels?.[0]?.textContent ?? element.textContent).trim().replace(/\s+/g, " ").slice(0, 40);
    return `${element.localName}${element.className && typeof element.className === "string" ? `.${element.className}` : ""} "${text}"`;
  };
  const isShown = (element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest(".unseen, .skip");
  const styles = new Map();
  const styleOf = (element) => {
    if (!styles.has(element)) styles.set(element, getComputedStyle(element));
    return styles.get(element);
  };

  /** A box without what its scrolling ancestors hide. */
  const clipped = (box, element) => {
    let { left, top, right, bottom } = box;
    for (let above = element; above && above !== document.body; above = above.parentElement) {
      if (styleOf(above).overflowX === "visible") continue;
      const edge = above.getBoundingClientRect();
      left = Math.max(left, edge.left);
      top = Math.max(top, edge.top);
      right = Math.min(right, edge.right);
      bottom = Math.min(bottom, edge.bottom);
    }
    return { left, top, right, bottom };
  };
  const isOver = (one, other) => (
    Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1
    && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 1
  );

  // The page is as wide as its window.
  const wide = document.documentElement.scrollWidth;
  if (wide > width) found.push(`the page is ${wide} px wide in a window of ${width}`);

  // No control overlaps another one, or a text beside it.
  const boxes = [];
  for (const element of root.querySelectorAll("a, button, input, select, textarea, summary")) {
    if (!isShown(element)) continue;
    const own = element.localName === "a" ? [...element.getClientRects()] : [element.getBoundingClientRect()];
    for (const box of own) boxes.push({ element, isControl: true, box: clipped(box, element.parentElement) });
  }
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !isShown(element) || element.closest("svg, option, textarea")) continue;
    range.selectNodeContents(texts.currentNode);
    for (const box of range.getClientRects()) boxes.push({ element, isControl: false, box: clipped(box, element) });
  }
  boxes.sort((one, other) => one.box.top - other.box.top);
  for (let place = 0; place < boxes.length; place += 1) {
    const one = boxes[place];
    for (let next = place + 1; next < boxes.length && boxes[next].box.top < one.box.bottom; next += 1) {
      const other = boxes[next];
      if (!(one.isControl || other.isControl) || one.element.contains(other.element) || other.element.contains(one.element)) continue;
      if (isOver(one.box, other.box)) found.push(`${nameOf(one.element)} overlaps ${nameOf(other.element)}`);
    }
  }

  // Nothing runs out of its column, but where that scrolls or says "…".
  for (const element of root.querySelectorAll("*")) {
    const { overflowX, display } = styleOf(element);
    if (!isShown(element) || element.closest("svg") || display.startsWith("inline") || display === "contents" || !element.clientWidth) continue;
    if (overflowX === "visible" && element.scrollWidth > element.clientWidth + 1 && !["TABLE", "THEAD", "TBODY", "TR", "INPUT", "SELECT"].includes(element.tagName)) {
      found.push(`${nameOf(element)} is ${element.scrollWidth - element.clientWidth} px too wide for its column`);
    }
  }

  // No cell with a time or a size wraps.
  const isTimeOrSize = /\d (B|[KMGT]iB|ms|s|min|h|d)\b|\d:\d\d/;
  for (const cell of root.querySelectorAll("td, tbody th, .tiles dd, dialog dd")) {
    const text = cell.textContent.trim();
    if (!isShown(cell) || cell.matches(".message, .why") || text.length > 48 || !isTimeOrSize.test(text)) continue;
    range.selectNodeContents(cell);
    const rows = [...range.getClientRects()].filter((box) => box.width > 0).sort((one, other) => one.top - other.top);
    if (rows.some((box, place) => place > 0 && box.top > rows[place - 1].bottom - 3)) found.push(`${nameOf(cell)} wraps`);
  }
  return [...new Set(found)];
}
