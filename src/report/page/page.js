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

  /* Where a value of x lies: on a logarithmic axis at its logarithm. */
  function placeOf(chart, x) {
    return chart.x_log ? Math.log10(x) : x;
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

  /* Rows [x, [low, y, high] of each series] over all x that any series has. */
  function rowsOf(chart) {
    var rows = new Map();
    chart.series.forEach(function (series, s) {
      series.x.forEach(function (value, i) {
        var x = placeOf(chart, value);
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
    board.readout.append(" at " + short(series.x[i]) + " " + chart.x_title.split(":")[0]);
  }

  function readOut(board, points, name) {
    var point = points.find(function (one) { return one.name === name; }) || points[0];
    var series = board.chart.series[Number(point.name.slice(1))];
    var i = series.x.findIndex(function (x) { return placeOf(board.chart, x) === point.xval; });
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
    if (s !== place.s) { /* the nearest x */
      var x = began ? series.x[0] : chart.series[place.s].x[place.i];
      i = series.x.reduce(function (best, one, k) {
        return Math.abs(one - x) < Math.abs(series.x[best] - x) ? k : best;
      }, 0);
    } else {
      i = Math.min(series.x.length - 1, Math.max(0, i + along));
    }
    board.place = { s: s, i: i };
    var row = board.xs.indexOf(placeOf(chart, series.x[i]));
    board.graph.setSelection(row, "s" + s);
    readOutPoint(board, series, i);
  }

  function themeOptions() {
    return { gridLineColor: colour("grid"), axisLineColor: colour("soft") };
  }

  /* Whole numbers, such as orders, have no ticks between them. */
  function tickWords(chart) {
    var whole = chart.series.every(function (series) { return series.x.every(Number.isInteger); });
    return function (value) { return whole && !Number.isInteger(value) ? "" : short(value); };
  }

  function graphOptions(board) {
    var chart = board.chart, theme = themeOptions();
    var options = {
      labels: ["x"].concat(chart.series.map(function (series, s) { return "s" + s; })),
      series: seriesOptions(chart),
      visibility: chart.series.map(function () { return true; }),
      customBars: true,
      connectSeparatedPoints: true,
      fillAlpha: 0.1,
      strokeWidth: 2,
      drawPoints: chart.points || rowsOf(chart).length <= 24,
      pointSize: chart.points ? 5 : 3,
      highlightCircleSize: 5,
      legend: "never",
      interactionModel: touchModel(),
      underlayCallback: function (context, area, graph) { graph.marks = []; },
      gridLineColor: theme.gridLineColor,
      axisLineColor: theme.axisLineColor,
      gridLineWidth: 1,
      xRangePad: chart.points || rowsOf(chart).length <= 24 ? 24 : 4,
      yRangePad: 14,
      animatedZooms: false,
      axes: {
        x: { axisLabelFormatter: tickWords(chart), pixelsPerLabel: 55, axisLabelWidth: 60 },
        y: { axisLabelFormatter: function (value) { return short(value); }, axisLabelWidth: 58, pixelsPerLabel: 40 }
      },
      rightGap: 32, /* half an x label: the last one stands under its grid line */
      highlightSeriesOpts: chart.points ? { highlightCircleSize: 8 } : { strokeWidth: 4, highlightCircleSize: 5 },
      highlightSeriesBackgroundAlpha: chart.points ? 1 : 0.35,
      highlightSeriesBackgroundColor: colour("paper"),
      highlightCallback: function (event, x, points, row, name) { readOut(board, points, name); },
      unhighlightCallback: function () { board.readout.textContent = board.hint; },
      zoomCallback: function () { board.reset.disabled = !board.graph.isZoomed(); }
    };
    if (chart.x_log) options.axes.x.ticker = logTicks;
    if (chart.points) {
      options.plotter = pointPlotter(chart);
      options.drawCallback = nameMarks;
      options.strokeWidth = 0.01;
    }
    return options;
  }

  function keyPicture(series, points) {
    var space = "http" + "://www.w3.org/2000/svg"; /* a name, never fetched */
    var picture = document.createElementNS(space, "svg");
    var shape = document.createElementNS(space, "path");
    var look = " c" + series.style % COLOURS + " d" + Math.floor(series.style / COLOURS) % DASHES.length;
    picture.setAttribute("viewBox", "0 0 30 14");
    picture.setAttribute("aria-hidden", "true");
    shape.setAttribute("class", (points ? "mark" : "line") + look);
    shape.setAttribute("d", !points ? "M1 7H29" : isSquare(series) ? "M10 2h10v10h-10z" : "M10 7a5 5 0 1 1 10 0a5 5 0 1 1-10 0z");
    picture.append(shape);
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

  function makeBoard(chart) {
    var figure = document.getElementById("figure-" + chart.name), still = figure.querySelector(".still");
    var board = { chart: chart, boxes: [], figure: figure };
    board.hint = (touch.matches ? "Tap" : "Point at") + (chart.points ? " a mark" : " a line") + " to read it. " +
      (touch.matches ? "Zoom with two fingers, tap twice to see all."
        : "Drag to zoom, double-click to see all. With the keyboard: arrow keys.");
    var frame = element("div", "board"), tools = element("div", "tools"), keys = element("fieldset", "keys");
    board.plot = element("div", "plot");
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
    frame.append(element("div", "axis-title", chart.y_title), board.plot, element("div", "axis-title x", chart.x_title),
      board.readout, tools, keys);
    figure.insertBefore(frame, still);
    board.xs = rowsOf(chart).map(function (row) { return row[0]; });
    board.graph = new Dygraph(board.plot, rowsOf(chart), graphOptions(board));
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
