/* selftest.js: when the page is opened with #selftest, tries every chart as a reader would and says
 * at the end of the page what did not react. */
(function () {
  "use strict";
  if (location.hash !== "#selftest") return;
  var problems = [];

  function isDrawn(board) {
    return Array.from(board.plot.querySelectorAll("canvas")).some(function (canvas) {
      var pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return pixels.some(function (byte) { return byte !== 0; });
    });
  }

  function send(target, type, canvas, x, y) {
    var box = canvas.getBoundingClientRect();
    target.dispatchEvent(new MouseEvent(type, {
      bubbles: true, cancelable: true, view: window, button: 0,
      clientX: box.left + x, clientY: box.top + y, screenX: box.left + x, screenY: box.top + y
    }));
  }

  function hovers(board) {
    var series = board.chart.series.find(function (one) { return one.x.length > 0; });
    var middle = Math.floor(series.x.length / 2), canvas = board.graph.canvas_;
    var place = board.graph.toDomCoords(board.placeOf(series, middle), series.y[middle]);
    send(canvas, "mousemove", canvas, place[0], place[1]);
    return board.readout.textContent !== board.hint && board.readout.textContent.length > 0;
  }

  function zooms(board) {
    var canvas = board.graph.canvas_, area = board.graph.getArea(), before = board.graph.xAxisRange();
    var y = area.y + area.h / 2, from = area.x + area.w * 0.3, to = area.x + area.w * 0.7;
    send(canvas, "mousedown", canvas, from, y);
    send(document, "mousemove", canvas, (from + to) / 2, y);
    send(document, "mousemove", canvas, to, y);
    send(document, "mouseup", canvas, to, y);
    var zoomed = board.graph.xAxisRange(), reacted = zoomed[0] > before[0] && zoomed[1] < before[1];
    board.reset.click();
    return reacted && Math.abs(board.graph.xAxisRange()[0] - before[0]) < 1e-6 * Math.abs(before[1] - before[0]);
  }

  function switches(board) {
    board.boxes[0].click();
    var off = board.graph.visibility()[0] === false;
    board.boxes[0].click();
    return off && board.graph.visibility()[0] === true;
  }

  function change(control, value) {
    if (control.type === "checkbox") control.checked = value; else control.value = value;
    control.dispatchEvent(new Event("change"));
  }

  function rangesOf(board) {
    return board.graph.xAxisRange().concat(board.graph.yAxisRange());
  }

  /* Every choice of axes leaves a range to draw in, another unit another one, and all go back. */
  function turns(board) {
    return Array.from(board.figure.querySelectorAll(".tools select, .tools input")).every(function (control) {
      var box = control.type === "checkbox", was = box ? control.checked : control.value, before = rangesOf(board);
      change(control, box ? !was : "tokens");
      var turned = rangesOf(board), moved = box || turned[1] > before[1];
      change(control, was);
      return moved && turned.every(isFinite) && turned[1] > turned[0] && String(rangesOf(board)) === String(before);
    });
  }

  function press(board, key) {
    board.plot.dispatchEvent(new KeyboardEvent("keydown", { key: key, bubbles: true, cancelable: true }));
    return board.readout.textContent;
  }

  /* The first key reads the first point; down reads another series, if there is one. */
  function reads(board) {
    var shown = board.chart.series.filter(function (one) { return one.x.length > 0; });
    var first = press(board, "ArrowRight");
    var right = first.indexOf(shown[0].name) === 0 && first.indexOf(" at ") > 0;
    right = right && (shown.length < 2 || press(board, "ArrowDown").indexOf(shown[1].name) === 0);
    right = right && board.readout.getAttribute("aria-live") === "polite";
    return press(board, "Escape") === board.hint && right;
  }

  /* No label is cut, and none of the x axis stands beside its grid line. */
  function isLabelled(board) {
    return Array.from(board.plot.querySelectorAll(".dygraph-axis-label")).every(function (label) {
      return label.scrollWidth <= label.clientWidth + 1 &&
        (!label.classList.contains("dygraph-axis-label-x") || label.parentNode.style.textAlign === "center");
    });
  }

  function tryBoard(board) {
    [["draw", isDrawn], ["answer to the pointer", hovers], ["zoom", zooms], ["switch a series", switches],
      ["answer to keys", reads], ["change its axes", turns], ["show its labels whole and in place", isLabelled]]
      .forEach(function (check) {
        if (!check[1](board)) problems.push(board.chart.name + " does not " + check[0]);
      });
  }

  window.addEventListener("load", function () {
    var verdict = document.createElement("p");
    verdict.id = "selftest";
    try {
      window.reportBoards.forEach(tryBoard);
    } catch (error) {
      problems.push(String(error));
    }
    document.querySelectorAll("figure, [role=img]").forEach(function (one) {
      var caption = document.getElementById(one.getAttribute("aria-labelledby") || "") || one.querySelector("figcaption");
      if (!one.getAttribute("aria-label") && !(caption && caption.textContent)) problems.push("a figure has no name");
    });
    if (window.reportBoards.length !== document.querySelectorAll("figure.live").length)
      problems.push("some charts were not made");
    verdict.textContent = problems.length ? "selftest failed: " + problems.join("; ")
      : "selftest passed: " + window.reportBoards.length + " charts";
    document.body.append(verdict);
  });
})();
