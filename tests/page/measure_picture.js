// Measures a picture of nodes and lines: labels over each other, lines through nodes and labels. A list of complaints.
(() => {
  const STEP = 2; // pixels between two points of a line that are looked at

  /** Points of a path of M, C, H and V. (The browser's getPointAtLength takes a hundred times as long.) */
  const pointsOf = (path) => {
    const found = [];
    let x = 0, y = 0;
    for (const [, letter, numbers] of path.matchAll(/([MCHV])([^MCHV]*)/g)) {
      const given = numbers.match(/-?[\d.]+/g).map(Number);
      const ends = letter === "H" ? [given[0], y] : letter === "V" ? [x, given[0]] : given.slice(-2);
      const [x1, y1, x2, y2] = letter === "C" ? given : [x, y, ...ends];
      const count = letter === "M" ? 1 : Math.ceil((Math.abs(ends[0] - x) + Math.abs(ends[1] - y)) / STEP) + 1;
      for (let place = 1; place <= count; place += 1) {
        const part = place / count, rest = 1 - part;
        const at = (start, one, two, end) => (
          letter === "C" ? rest ** 3 * start + 3 * rest ** 2 * part * one + 3 * rest * part ** 2 * two + part ** 3 * end
            : rest * start + part * end
        );
        found.push(letter === "M" ? { x: ends[0], y: ends[1] } : { x: at(x, x1, x2, ends[0]), y: at(y, y1, y2, ends[1]) });
      }
      [x, y] = ends;
    }
    return found;
  };

  const isIn = ({ x, y }, box, margin) => (
    x > box.x + margin && x < box.x + box.width - margin && y > box.y + margin && y < box.y + box.height - margin
  );
  const isOver = (one, other) => (
    Math.min(one.x + one.width, other.x + other.width) - Math.max(one.x, other.x) > 0.5
    && Math.min(one.y + one.height, other.y + other.height) - Math.max(one.y, other.y) > 0.5
  );

  /** `nodes` are boxes with a name; `lines` have a name, a path, and the box of their label or null. */
  const faults = (nodes, lines, size) => {
    const found = [];
    const labels = lines.filter(({ label }) => label);
    labels.forEach((line, place) => {
      for (const other of labels.slice(0, place)) if (isOver(line.label, other.label)) found.push(`labels ${other.name} and ${line.name} overlap`);
      for (const node of nodes) if (isOver(line.label, node.box)) found.push(`label ${line.name} lies over ${node.name}`);
    });
    nodes.forEach((node, place) => {
      for (const other of nodes.slice(0, place)) if (isOver(node.box, other.box)) found.push(`${other.name} and ${node.name} overlap`);
    });
    for (const { name, path } of lines) {
      const whole = { x: 0, y: 0, ...size };
      for (const point of pointsOf(path)) {
        for (const node of nodes) if (isIn(point, node.box, 1)) found.push(`line ${name} crosses ${node.name}`);
        for (const other of labels) if (isIn(point, other.label, 1)) found.push(`line ${name} crosses label ${other.name}`);
        if (!isIn(point, whole, 0)) found.push(`line ${name} leaves the picture`);
      }
    }
    return [...new Set(found)];
  };

  /** The picture that is shown. */
  const ofShown = () => {
    const svg = document.querySelector("svg.bindings");
    const nodes = [...svg.querySelectorAll("g.queue, g.exchange")].map((group) => ({
      name: group.querySelector("title").textContent, box: group.querySelector("rect").getBBox(), text: group.querySelector("text").getBBox(),
    }));
    const lines = [...svg.querySelectorAll("g.way")].map((group, place) => ({
      name: `${place} ${group.querySelector("text")?.textContent ?? ""}`,
      path: group.querySelector("path").getAttribute("d"),
      label: group.querySelector("text")?.getBBox() ?? null,
    }));
    const wide = nodes.filter(({ box, text }) => text.width > box.width).map(({ name }) => `${name} is wider than its node`);
    const { width, height } = svg.viewBox.baseVal;
    return [...faults(nodes, lines, { width, height }), ...wide];
  };

  /** Pictures of graphs that chance makes, of up to so many nodes and lines. */
  const ofRandom = async (address, count, nodeCount, lineCount) => {
    const { layoutOf } = await import(address);
    let seed = 1;
    const chance = (most) => {
      seed = (seed * 48271) % 2147483647;
      return seed % most;
    };
    const found = [];
    for (let number = 0; number < count; number += 1) {
      const ids = Array.from({ length: 1 + chance(nodeCount) }, (_, place) => `n${place}`);
      const given = Array.from({ length: chance(lineCount) }, (_, place) => ({
        from: ids[chance(ids.length)], to: ids[chance(ids.length)], label: chance(3) ? "x".repeat(1 + chance(20)) + place : "",
      }));
      const widthOf = (label) => label.length * 7;
      const { nodes, lines, ...size } = layoutOf(ids, given, widthOf);
      found.push(...faults(
        [...nodes].map(([name, box]) => ({ name, box })),
        lines.map(({ path, label }, place) => ({
          name: place, path, label: label && { x: label.x, y: label.y - 11, width: widthOf(given[place].label), height: 14 },
        })),
        size,
      ).map((fault) => `graph ${number}: ${fault}`));
    }
    return found;
  };

  return { ofShown, ofRandom };
})()
