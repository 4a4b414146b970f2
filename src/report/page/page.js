/* page.js: draws the charts again with dygraphs, so that one can hover, zoom and switch series. */
(function () {
  "use strict";
  var COLOURS = 7;
  var DASHES = [null, [7, 4], [2, 3], [9, 3, 2, 3]];
  var touch = matchMedia("(hover: none)");
  var boards = [];

  function element(name, className, text) {
    var made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  function dashesOf(series) {
    return DASHES[Math.floor(series.style / COLOURS) % DASHES.length];
  }

  function isHollow(series) {
    return Math.floor(series.style / COLOURS) % 2 === 1;
  }

  function isSquare(series) {
    return Math.floor(series.style / COLOURS) % 4 >= 2;
  }

  /* 12 000 000 as 12M; numbers below `whole` (9999.5 if not given) stay as they are, and those for
   * which there is no letter, or no room for their zeros, are powers of ten. */
  function short(value, whole) {
    var units = ["", "k", "M", "G", "T", "P"], unit = 0, size = Math.abs(value);
    if (size >= 9.995e17 || (size > 0 && size < 1e-4))
      return value.toExponential(1).replace(".0e", "e").replace("e+", "e").replace(/-/g, "\u2212");
    while (size >= (unit ? 999.5 : whole > 0 ? whole : 9999.5) && unit < units.length - 1) { size /= 1000; unit++; }
    return (value < 0 ? "\u2212" : "") + String(Number(size.toPrecision(unit ? 3 : 5))) + units[unit];
  }

  /* What x can be counted in, where the series know it: the factor is a member of each series. */
  var UNITS = { steps: null, tokens: "tokens", seconds: "seconds", FLOPs: "flops" };

  function valueOf(board, series, i) {
    return series.x[i] * (UNITS[board.unit] ? series[UNITS[board.unit]] : 1);
  }

  /* Where point i of a series lies: on a logarithmic axis at its logarithm. */
  function placeOf(board, series, i) {
    var value = valueOf(board, series, i);
    return board.logX ? Math.log10(value) : value;
  }

  function xTitleOf(board) {
    return UNITS[board.unit] ? board.unit : board.chart.x_title;
  }

  /* Ticks of a logarithmic axis: powers of ten, and 2 and 5 times these where there is room. */
  function logTicks(from, to) {
    var ticks = [], leads = to - from > 3 ? [1] : to - from > 1.2 ? [1, 3] : [1, 2, 3, 5, 7];
    for (var power = Math.floor(from); power <= to; power++)
      leads.forEach(function (lead) {
        var at = power + Math.log10(lead);
        if (at >= from && at <= to) ticks.push({ v: at, label: short(lead * Math.pow(10, power), 999.5) });
      });
    return ticks;
  }

  /* The places of x that a chart of lines has, if they are whole numbers and few, such as orders:
   * ticks then stand there, as many of them as there is room for. */
  function fewPlaces(board) {
    var places = new Set();
    board.chart.series.forEach(function (series) { series.x.forEach(function (x) { places.add(x); }); });
    var few = !board.chart.points && places.size <= 12 && Array.from(places).every(Number.isInteger);
    return few && !UNITS[board.unit] ? Array.from(places).sort(function (a, b) { return a - b; }) : null;
  }

  function placeTicks(board) {
    return function (from, to, pixels) {
      var last = -Infinity, least = (to - from) * 30 / Math.max(pixels, 1);
      return fewPlaces(board).map(function (x) {
        return { v: board.logX ? Math.log10(x) : x, label: short(x) };
      }).filter(function (tick) {
        if (tick.v < from || tick.v > to || tick.v - last < least) return false;
        last = tick.v;
        return true;
      });
    };
  }

  /* Rows [x, [low, y, high] of each series] over all x that any series has. */
  function rowsOf(board) {
    var rows = new Map(), chart = board.chart;
    chart.series.forEach(function (series, s) {
      series.x.forEach(function (value, i) {
        var x = placeOf(board, series, i);
        if (!isFinite(x)) return;
        if (!rows.has(x)) rows.set(x, [x].concat(chart.series.map(function () { return null; })));
        var y = series.y[i];
        rows.get(x)[s + 1] = [series.low ? series.low[i] : y, y, series.high ? series.high[i] : y];
      });
    });
    return Array.from(rows.values()).sort(function (a, b) { return a[0] - b[0]; });
  }

  function drawMark(series) {
    return function (graph, name, context, x, y, markColour, size) {
      context.beginPath();
      if (isSquare(series)) context.rect(x - size * 0.9, y - size * 0.9, size * 1.8, size * 1.8);
      else context.arc(x, y, size, 0, 2 * Math.PI);
      context.lineWidth = 2;
      context.setLineDash([]);
      context.strokeStyle = markColour;
      context.fillStyle = isHollow(series) ? colour("paper") : markColour;
      context.fill();
      context.stroke();
    };
  }

  function pointPlotter(chart) {
    return function (e) {
      var series = chart.series[Number(e.setName.slice(1))];
      e.points.forEach(function (point) {
        if (!isFinite(point.canvasy)) return;
        drawMark(series)(e.dygraph, e.setName, e.drawingContext, point.canvasx, point.canvasy, e.color, 5);
        e.dygraph.marks.push({ x: point.canvasx, y: point.canvasy, name: series.name });
      });
    };
  }

  function apart(one, other) {
    return one.right < other.left || one.left > other.right || one.bottom < other.top || one.top > other.bottom;
  }

  /* Names beside their marks, to the right or left, above or below, wherever there is room; those
   * without room show when pointed at. */
  function nameMarks(graph) {
    var context = graph.hidden_ctx_, area = graph.getArea();
    var taken = graph.marks.map(function (mark) {
      return { left: mark.x - 6, right: mark.x + 6, top: mark.y - 6, bottom: mark.y + 6 };
    });
    context.save();
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = colour("ink");
    graph.marks.forEach(function (mark) {
      var text = mark.name.length > 22 ? mark.name.slice(0, 21) + "\u2026" : mark.name;
      var width = context.measureText(text).width;
      var place = [[9, -7], [-9 - width, -7], [-width / 2, -21], [-width / 2, 8]].map(function (shift) {
        var left = mark.x + shift[0], top = mark.y + shift[1];
        return { left: left, right: left + width, top: top, bottom: top + 14 };
      }).find(function (box) {
        return box.left >= area.x && box.right <= area.x + area.w && box.top >= area.y - 4 &&
          box.bottom <= area.y + area.h + 4 && taken.every(function (other) { return apart(box, other); });
      });
      if (!place) return;
      taken.push(place);
      context.fillText(text, place.left, place.top + 11);
    });
    context.restore();
  }

  /* From the top down, none nearer to the one before than a line of text, and all inside. */
  function spread(ends, top, bottom, line) {
    ends.sort(function (a, b) { return a.y - b.y; });
    ends.forEach(function (end, i) { end.at = Math.max(end.y, i ? ends[i - 1].at + line : top); });
    for (var i = ends.length - 1, room = bottom; i >= 0; room = ends[i].at - line, i--)
      ends[i].at = Math.min(ends[i].at, room);
  }

  function inPicture(name, className, attributes) {
    var made = document.createElementNS("http" + "://www.w3.org/2000/svg", name); /* a name, never fetched */
    made.setAttribute("class", className);
    Object.keys(attributes).forEach(function (key) { made.setAttribute(key, attributes[key]); });
    return made;
  }

  function lookOf(series) {
    return " c" + series.style % COLOURS + " d" + Math.floor(series.style / COLOURS) % DASHES.length;
  }

  /* Where each line ends inside the view. */
  function endsOf(board, graph) {
    var area = graph.getArea(), range = graph.xAxisRange(), ends = [];
    board.chart.series.forEach(function (series, s) {
      if (!graph.visibility()[s]) return;
      for (var i = series.x.length - 1; i >= 0; i--) {
        var place = placeOf(board, series, i);
        if (!(place <= range[1] && place >= range[0])) continue;
        var y = graph.toDomYCoord(series.y[i]), x = graph.toDomXCoord(place);
        if (y >= area.y - 1 && y <= area.y + area.h + 1) ends.push({ series: series, x: x, y: y });
        break;
      }
    });
    return ends;
  }

  /* The names of lines at their ends, in their colours and with a piece of their dashes: in the gap to
   * the right of the plot, or beside a line that ends before it. */
  function nameEnds(board, graph) {
    var area = graph.getArea(), right = area.x + area.w, groups = new Map();
    board.ends.textContent = "";
    endsOf(board, graph).forEach(function (end) {
      var from = end.x > right - 40 ? right : end.x;
      if (!groups.has(from)) groups.set(from, []);
      groups.get(from).push(end);
    });
    groups.forEach(function (ends, from) {
      spread(ends, area.y + 5, area.y + area.h - 2, 13);
      ends.forEach(function (end) {
        var text = inPicture("text", "end t" + end.series.style % COLOURS, { x: from + 19, y: end.at + 4 });
        var most = Math.floor((from === right ? board.gap - 24 : 130) / 6.3), name = end.series.name;
        text.textContent = name.length > most ? name.slice(0, most - 1) + "\u2026" : name;
        board.ends.append(inPicture("path", "leader" + lookOf(end.series),
          { d: "M" + Math.min(end.x + 4, from) + " " + end.y + "L" + (from + 16) + " " + end.at }), text);
      });
    });
  }

  /* One finger scrolls the page, two zoom the chart. */
  function touchModel() {
    var usual = Dygraph.defaultInteractionModel, model = Object.assign({}, usual);
    ["touchstart", "touchmove"].forEach(function (type) {
      model[type] = function (event, graph, context) {
        if (event.touches.length > 1) usual[type](event, graph, context);
      };
    });
    return model;
  }

  function seriesOptions(chart) {
    var options = {};
    chart.series.forEach(function (series, s) {
      options["s" + s] = {
        color: colour("c" + series.style % COLOURS),
        strokePattern: dashesOf(series),
        drawPointCallback: drawMark(series),
        drawHighlightPointCallback: drawMark(series)
      };
    });
    return options;
  }

  /* Four decimals, or as many digits where these would show nothing. */
  function digits(value) {
    var size = Math.abs(value);
    return (size >= 0.001 || size === 0) && size < 1e6 ? value.toFixed(4) : String(Number(value.toPrecision(5)));
  }

  function readOutPoint(board, series, i) {
    var chart = board.chart;
    board.readout.textContent = "";
    board.readout.append(element("b", "", series.name), ": " + chart.y_title.toLowerCase() + " " + digits(series.y[i]));
    if (series.low && series.low[i] < series.high[i])
      board.readout.append(" [" + digits(series.low[i]) + ", " + digits(series.high[i]) + "]");
    board.readout.append(" at " + short(valueOf(board, series, i)) + " " + xTitleOf(board).split(":")[0]);
  }

  function readOut(board, points, name) {
    var point = points.find(function (one) { return one.name === name; }) || points[0];
    var series = board.chart.series[Number(point.name.slice(1))];
    var i = series.x.findIndex(function (x, k) { return placeOf(board, series, k) === point.xval; });
    if (i >= 0) readOutPoint(board, series, i);
  }

  /* The series that are shown and have points. */
  function readable(board) {
    return board.chart.series.map(function (series, s) { return s; }).filter(function (s) {
      return board.boxes[s].checked && board.chart.series[s].x.length > 0;
    });
  }

  /* By key: another point of the series, or the same place in another series. */
  function walk(board, along, across) {
    var shown = readable(board), place = board.place || { s: -1, i: 0 }, chart = board.chart;
    if (shown.length === 0) return;
    var at = shown.indexOf(place.s), began = at < 0;
    at = began ? 0 : (at + across + shown.length) % shown.length;
    var s = shown[at], series = chart.series[s], i = place.i;
    if (s !== place.s) { /* the nearest x, counted as in the file */
      var x = began ? series.x[0] : chart.series[place.s].x[place.i];
      i = series.x.reduce(function (best, one, k) {
        return Math.abs(one - x) < Math.abs(series.x[best] - x) ? k : best;
      }, 0);
    } else {
      i = Math.min(series.x.length - 1, Math.max(0, i + along));
    }
    board.place = { s: s, i: i };
    var row = board.xs.indexOf(placeOf(board, series, i));
    board.graph.setSelection(row, "s" + s);
    readOutPoint(board, series, i);
  }

  function themeOptions() {
    return { gridLineColor: colour("grid"), axisLineColor: colour("soft") };
  }

  /* Whole numbers, such as orders, have no ticks between them. */
  function tickWords(board) {
    var whole = board.chart.series.every(function (series) { return series.x.every(Number.isInteger); });
    return function (value) { return whole && board.unit === "steps" && !Number.isInteger(value) ? "" : short(value); };
  }

  /* What changes with the choice of axes. */
  function axisOptions(board) {
    var x = { axisLabelFormatter: tickWords(board), pixelsPerLabel: 55, axisLabelWidth: 60, ticker: Dygraph.numericLinearTicks };
    if (fewPlaces(board)) x.ticker = placeTicks(board);
    else if (board.logX) x.ticker = logTicks;
    return {
      logscale: board.logY,
      axes: {
        x: x,
        y: { axisLabelFormatter: function (value) { return short(value); }, axisLabelWidth: 58, pixelsPerLabel: 40 }
      }
    };
  }

  function changeAxes(board) {
    var options = axisOptions(board), rows = rowsOf(board);
    board.xs = rows.map(function (row) { return row[0]; });
    options.file = rows;
    options.dateWindow = null;
    options.valueRange = null;
    board.place = null;
    board.xName.textContent = xTitleOf(board);
    board.graph.updateOptions(options);
    board.reset.disabled = true;
  }

  function graphOptions(board) {
    var chart = board.chart, theme = themeOptions(), few = rowsOf(board).length <= 24, axes = axisOptions(board);
    var options = {
      labels: ["x"].concat(chart.series.map(function (series, s) { return "s" + s; })),
      series: seriesOptions(chart),
      visibility: chart.series.map(function () { return true; }),
      customBars: true,
      connectSeparatedPoints: true,
      fillAlpha: 0.1,
      strokeWidth: 2,
      drawPoints: chart.points || few,
      pointSize: chart.points ? 5 : 3,
      highlightCircleSize: 5,
      legend: "never",
      interactionModel: touchModel(),
      underlayCallback: function (context, area, graph) { graph.marks = []; },
      gridLineColor: theme.gridLineColor,
      axisLineColor: theme.axisLineColor,
      gridLineWidth: 1,
      xRangePad: chart.points || few ? 24 : 4,
      yRangePad: 14,
      animatedZooms: false,
      logscale: axes.logscale,
      axes: axes.axes,
      rightGap: chart.points ? 32 : board.gap, /* half an x label, or the names at the ends of lines */
      highlightSeriesOpts: chart.points ? { highlightCircleSize: 8 } : { strokeWidth: 4, highlightCircleSize: 5 },
      highlightSeriesBackgroundAlpha: chart.points ? 1 : 0.35,
      highlightSeriesBackgroundColor: colour("paper"),
      highlightCallback: function (event, x, points, row, name) { readOut(board, points, name); },
      unhighlightCallback: function () { board.readout.textContent = board.hint; },
      zoomCallback: function () { board.reset.disabled = !board.graph.isZoomed(); }
    };
    if (!chart.points) options.drawCallback = function (graph) { nameEnds(board, graph); };
    if (chart.points) {
      options.plotter = pointPlotter(chart);
      options.drawCallback = nameMarks;
      options.strokeWidth = 0.01;
    }
    return options;
  }

  function keyPicture(series, points) {
    var picture = inPicture("svg", "", { viewBox: "0 0 30 14", "aria-hidden": "true" });
    var outline = !points ? "M1 7H29" : isSquare(series) ? "M10 2h10v10h-10z" : "M10 7a5 5 0 1 1 10 0a5 5 0 1 1-10 0z";
    picture.append(inPicture("path", (points ? "mark" : "line") + lookOf(series), { d: outline }));
    return picture;
  }

  function makeKey(board, s) {
    var series = board.chart.series[s];
    var label = element("label"), box = element("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", function () {
      board.graph.setVisibility(s, box.checked);
    });
    label.title = series.name;
    label.append(box, keyPicture(series, board.chart.points), element("span", "", series.name));
    label.addEventListener("mouseenter", function () {
      if (box.checked && !board.chart.points) board.graph.setSelection(false, "s" + s);
    });
    label.addEventListener("mouseleave", function () { board.graph.clearSelection(); });
    board.boxes.push(box);
    return label;
  }

  function switchAll(board, on) {
    board.boxes.forEach(function (box) { box.checked = on; });
    board.graph.setVisibility(board.boxes.map(function () { return on; }));
  }

  function button(text, act) {
    var made = element("button", "", text);
    made.type = "button";
    made.addEventListener("click", act);
    return made;
  }

  /* Arrow keys go from point to point and, up and down, from series to series; with Shift they move
   * the view; + and - zoom, 0 shows everything. */
  function onKey(board, event) {
    var range = board.graph.xAxisRange(), span = range[1] - range[0], middle = (range[0] + range[1]) / 2;
    var steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    var views = {
      ArrowLeft: [range[0] - span / 5, range[1] - span / 5], ArrowRight: [range[0] + span / 5, range[1] + span / 5],
      "+": [middle - span / 3, middle + span / 3], "-": [middle - span * 0.75, middle + span * 0.75]
    };
    if (event.key === "Escape") { board.place = null; board.graph.clearSelection(); board.readout.textContent = board.hint; }
    else if (steps[event.key] && !event.shiftKey) walk(board, steps[event.key][0], steps[event.key][1]);
    else if (event.key === "0") board.graph.resetZoom();
    else if (views[event.key]) board.graph.updateOptions({ dateWindow: views[event.key] });
    else return;
    board.reset.disabled = !board.graph.isZoomed();
    event.preventDefault();
  }

  function choice(text, on, act) {
    var label = element("label"), box = element("input");
    box.type = "checkbox";
    box.checked = on;
    box.addEventListener("change", function () { act(box.checked); });
    label.append(box, text);
    return label;
  }

  /* Steps, tokens, seconds or FLOPs, and logarithms, where the series have numbers for them. */
  function axisTools(board) {
    var series = board.chart.series.filter(function (one) { return one.x.length > 0; }), tools = [];
    var units = Object.keys(UNITS).filter(function (unit) {
      return !UNITS[unit] || series.every(function (one) { return one[UNITS[unit]] > 0; });
    });
    if (units.length > 1) {
      var label = element("label", "", "Against "), select = element("select");
      units.forEach(function (unit) { select.append(element("option", "", unit)); });
      select.addEventListener("change", function () { board.unit = select.value; changeAxes(board); });
      label.append(select);
      tools.push(label);
    }
    if (series.every(function (one) { return one.x[0] > 0; }))
      tools.push(choice("log x", board.logX, function (on) { board.logX = on; changeAxes(board); }));
    if (series.every(function (one) { return (one.low || one.y).every(function (y) { return y > 0; }); }))
      tools.push(choice("log y", board.logY, function (on) { board.logY = on; changeAxes(board); }));
    return tools;
  }

  function makeBoard(chart) {
    var figure = document.getElementById("figure-" + chart.name), still = figure.querySelector(".still");
    var board = { chart: chart, boxes: [], figure: figure, unit: "steps", logX: chart.x_log, logY: false };
    board.gap = figure.clientWidth > 640 ? 165 : 104;
    board.hint = (touch.matches ? "Tap" : "Point at") + (chart.points ? " a mark" : " a line") + " to read it. " +
      (touch.matches ? "Zoom with two fingers, tap twice to see all."
        : "Drag to zoom, double-click to see all. With the keyboard: arrow keys.");
    var frame = element("div", "board"), tools = element("div", "tools"), keys = element("fieldset", "keys");
    board.plot = element("div", "plot");
    board.ends = inPicture("svg", "ends", { "aria-hidden": "true" });
    board.plot.tabIndex = 0;
    board.plot.setAttribute("role", "application");
    board.plot.setAttribute("aria-roledescription", "chart");
    board.plot.setAttribute("aria-label", still.querySelector("svg").getAttribute("aria-label") +
      " Left and right read the points of a series, up and down go to another series. With shift, left and right" +
      " move the view; plus and minus zoom, zero shows everything.");
    board.plot.addEventListener("keydown", function (event) { onKey(board, event); });
    board.readout = element("div", "readout", board.hint);
    board.readout.setAttribute("aria-live", "polite");
    board.reset = button("Reset zoom", function () { board.graph.resetZoom(); board.reset.disabled = true; });
    board.reset.disabled = true;
    tools.append(button("All on", function () { switchAll(board, true); }),
      button("All off", function () { switchAll(board, false); }), board.reset);
    if (!chart.points) tools.append.apply(tools, axisTools(board));
    board.xName = element("div", "axis-title x", chart.x_title);
    frame.append(element("div", "axis-title", chart.y_title), board.plot, board.xName, board.readout, tools, keys);
    figure.insertBefore(frame, still);
    board.placeOf = function (series, i) { return placeOf(board, series, i); };
    board.xs = rowsOf(board).map(function (row) { return row[0]; });
    board.graph = new Dygraph(board.plot, rowsOf(board), graphOptions(board));
    board.plot.append(board.ends);
    keys.append(element("legend", "", "Shown"));
    chart.series.forEach(function (series, s) { keys.append(makeKey(board, s)); });
    figure.classList.add("scripted");
    board.graph.resize();
    boards.push(board);
  }

  function repaint() {
    boards.forEach(function (board) {
      var options = themeOptions();
      options.series = seriesOptions(board.chart);
      options.highlightSeriesBackgroundColor = colour("paper");
      board.graph.updateOptions(options);
    });
  }

  JSON.parse(document.getElementById("charts").textContent).forEach(makeBoard);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  window.reportBoards = boards; /* for the self-test */
})();
