// The layout of a graph from left to right: no line crosses a node, and no label another label.
//
// Columns of nodes and columns of labels take turns. A line has a row of its own in each column that it passes: its label
// stands there, on the line. Lines bend in the gaps between the columns, where nothing else is. A line that leads back
// goes through a lane below everything.

const NODE_WIDTH = 190, NODE_HEIGHT = 34, GAP = 34, MARGIN = 12;
const ROW_GAP = 12, LABEL_HEIGHT = 20, LINE_HEIGHT = 8, LANE_HEIGHT = 22;
const LABEL_INDENT = 4; // below the node: the lines of other lanes go down beside it
const SWEEPS = 4;

/**
 * Places nodes and lines.
 *
 * `nodes` are ids; `given` are lines, `{ from, to, label }`; `widthOf` tells how wide a label is. Returns `width` and `height`,
 * `nodes` by id as `{ x, y, width, height }`, and for each line its `path`, its `end` and the place of its label.
 */
export function layoutOf(nodes, given, widthOf) {
  const lines = given.map((line, number) => ({ ...line, number }));
  const backwards = backwardLines(nodes, lines);
  const depths = depthsOf(nodes, lines, backwards);
  const columns = columnsOf(nodes, lines, depths, backwards);
  arrangeRows(columns);
  const xs = placeColumns(columns, lines, widthOf, backwards.size > 0);
  const bottom = placeRows(columns);
  const items = new Map(columns.flat().map((item) => [item.key, item]));
  const lanes = [...backwards].map((line, lane) => ({ line, y: bottom + (lane + 1) * LANE_HEIGHT, lane }));
  const drawn = lines.map((line) => (
    backwards.has(line) ? null : forwardLine(line, depths, items, xs)
  ));
  for (const { line, y, lane } of lanes) drawn[line.number] = backwardLine(line, items, y, lane);
  const widest = Math.max(0, ...lanes.map(({ line, lane }) => (
    Math.max(items.get(line.from).x + NODE_WIDTH + offsetOf(lane), items.get(line.to).x + LABEL_INDENT + widthOf(line.label))
  )));
  return {
    width: Math.max(xs.end, widest) + MARGIN,
    height: bottom + (lanes.length ? (lanes.length + 0.5) * LANE_HEIGHT : 0) + MARGIN,
    nodes: new Map(nodes.map((id) => [id, { x: items.get(id).x, y: items.get(id).y, width: NODE_WIDTH, height: NODE_HEIGHT }])),
    lines: drawn,
  };
}

/** Those lines that close a circle: without them every line leads to the right. */
function backwardLines(nodes, lines) {
  const from = Map.groupBy(lines, (line) => line.from);
  const found = new Set(), state = new Map();
  for (const root of nodes) {
    const stack = state.has(root) ? [] : [[root, 0]];
    if (stack.length) state.set(root, "open");
    while (stack.length) {
      const top = stack.at(-1), [id, next] = top;
      const line = from.get(id)?.[next];
      top[1] += 1;
      if (!line) {
        state.set(id, "done");
        stack.pop();
      } else if (state.get(line.to) === "open") {
        found.add(line);
      } else if (!state.has(line.to)) {
        state.set(line.to, "open");
        stack.push([line.to, 0]);
      }
    }
  }
  return found;
}

/** How many lines lead to each node at the most. */
function depthsOf(nodes, lines, backwards) {
  const depths = new Map(nodes.map((id) => [id, 0]));
  let isSettled = false;
  while (!isSettled) {
    isSettled = true;
    for (const line of lines) {
      if (!backwards.has(line) && depths.get(line.to) <= depths.get(line.from)) {
        depths.set(line.to, depths.get(line.from) + 1);
        isSettled = false;
      }
    }
  }
  return depths;
}

/** Columns of items, each `{ key, height, before, after }`: nodes in the even ones, and rows for lines. */
function columnsOf(nodes, lines, depths, backwards) {
  const columns = Array.from({ length: 2 * Math.max(0, ...depths.values()) + 1 }, () => []);
  const items = new Map();
  const add = (column, key, height) => {
    const item = { key, height, before: [], after: [], x: 0, y: 0 };
    columns[column].push(item);
    items.set(key, item);
    return item;
  };
  for (const id of nodes) add(2 * depths.get(id), id, NODE_HEIGHT);
  lines.forEach((line) => {
    if (backwards.has(line)) return;
    let last = items.get(line.from);
    const end = 2 * depths.get(line.to);
    for (let column = 2 * depths.get(line.from) + 1; column <= end; column += 1) {
      const isLabel = column === end - 1 && line.label;
      const item = column === end
        ? items.get(line.to) : add(column, keyOf(line, column), isLabel ? LABEL_HEIGHT : LINE_HEIGHT);
      last.after.push(item);
      item.before.push(last);
      last = item;
    }
  });
  return columns;
}

function keyOf(line, column) {
  return `\0${line.number} ${column}`; // no node has such an id
}

/** Orders each column by where its neighbours are, there and back, so that few lines cross. */
function arrangeRows(columns) {
  const rows = new Map();
  const note = (column) => column.forEach((item, row) => rows.set(item, row / Math.max(1, column.length - 1)));
  columns.forEach(note);
  const sort = (column, side) => {
    const mean = (item) => (
      item[side].length ? item[side].reduce((sum, each) => sum + rows.get(each), 0) / item[side].length : rows.get(item)
    );
    const means = new Map(column.map((item) => [item, mean(item)]));
    column.sort((one, other) => means.get(one) - means.get(other));
    note(column);
  };
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    for (const column of columns) sort(column, "before");
    if (sweep < SWEEPS - 1) for (const column of columns.toReversed()) sort(column, "after");
  }
}

/** Sets where each column is. Returns where they begin, with `end`. */
function placeColumns(columns, lines, widthOf, hasLanes) {
  const labels = new Map(lines.flatMap((line) => (line.label ? columns.map((_, column) => [keyOf(line, column), line.label]) : [])));
  const xs = [];
  let x = MARGIN + (hasLanes ? GAP : 0);
  columns.forEach((column, place) => {
    xs.push(x);
    const isOfLabels = place % 2 === 1;
    const width = isOfLabels
      ? Math.max(0, ...column.map(({ key, height }) => (height === LABEL_HEIGHT ? widthOf(labels.get(key)) : 0))) : NODE_WIDTH;
    for (const item of column) Object.assign(item, { x, width });
    x += width + GAP;
  });
  xs.end = x - GAP;
  return xs;
}

/** Sets where each row is, near its neighbours. Returns where the lowest ends. */
function placeRows(columns) {
  const center = (item) => item.y + item.height / 2;
  const wanted = (item, near) => (
    near.length ? near.reduce((sum, each) => sum + center(each), 0) / near.length - item.height / 2 : item.y
  );
  // Items that want the same place become a block, whose middle is where they want to be on average.
  const place = (column, side) => {
    const blocks = [];
    for (const item of column) {
      let block = { items: [item], sum: wanted(item, item[side]), height: item.height + ROW_GAP };
      while (blocks.length && topOf(blocks.at(-1)) + blocks.at(-1).height > topOf(block)) {
        const above = blocks.pop();
        block = {
          items: [...above.items, ...block.items],
          sum: above.sum + block.sum - above.height * block.items.length,
          height: above.height + block.height,
        };
      }
      blocks.push(block);
    }
    for (const block of blocks) {
      let y = topOf(block);
      for (const item of block.items) {
        item.y = y;
        y += item.height + ROW_GAP;
      }
    }
  };
  for (const column of columns) place(column, "before");
  for (const column of columns.toReversed()) place(column, "after");
  for (const column of columns) place(column, "before");
  const top = Math.min(...columns.flat().map((item) => item.y)) - MARGIN;
  for (const item of columns.flat()) item.y -= top;
  return Math.max(...columns.flat().map((item) => item.y + item.height));
}

function topOf({ sum, items }) {
  return sum / items.length;
}

/** The height at which a line passes an item: through the middle of a node, and below the text of a label. */
function levelOf(item) {
  return item.y + (item.height === LABEL_HEIGHT ? LABEL_HEIGHT - 3 : item.height / 2);
}

function forwardLine(line, depths, items, xs) {
  const first = 2 * depths.get(line.from), last = 2 * depths.get(line.to);
  let x = xs[first] + NODE_WIDTH, y = levelOf(items.get(line.from));
  let path = `M ${x} ${y}`, label = null;
  for (let column = first + 1; column <= last; column += 1) {
    const item = column === last ? items.get(line.to) : items.get(keyOf(line, column));
    const level = levelOf(item), middle = (x + item.x) / 2;
    path += ` C ${middle} ${y}, ${middle} ${level}, ${item.x} ${level}`;
    if (column < last) path += ` H ${item.x + item.width}`;
    if (item.height === LABEL_HEIGHT) label = { x: item.x, y: level - 5 };
    x = item.x + item.width;
    y = level;
  }
  return { path, end: { x: items.get(line.to).x, y }, label };
}

/** How far from a node a lane's line turns: those of eight lanes fit into a gap. */
function offsetOf(lane) {
  return 6 + (lane % 8) * 3;
}

function backwardLine(line, items, laneY, lane) {
  const from = items.get(line.from), to = items.get(line.to);
  const right = from.x + NODE_WIDTH + offsetOf(lane), left = to.x - offsetOf(lane);
  const path = `M ${from.x + NODE_WIDTH} ${levelOf(from)} H ${right} V ${laneY} H ${left} V ${levelOf(to)} H ${to.x}`;
  return { path, end: { x: to.x, y: levelOf(to) }, label: line.label ? { x: to.x + LABEL_INDENT, y: laneY - 5 } : null };
}
