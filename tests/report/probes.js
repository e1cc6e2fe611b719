// What tests ask of a page: boxes that lie on each other, charts that do not fit, what is seen.

const isSeen = element => element.getClientRects().length > 0;

function nameOf(element) {
  return `${element.tagName}.${element.className} "${element.textContent.slice(0, 30)}"`;
}

function overlapsAmong(elements) {
  const found = [];
  const boxes = [...elements].filter(isSeen).map(e => [e, e.getBoundingClientRect()]);
  boxes.forEach(([a, first], n) => boxes.slice(n + 1).forEach(([b, second]) => {
    const wide = Math.min(first.right, second.right) - Math.max(first.left, second.left);
    const high = Math.min(first.bottom, second.bottom) - Math.max(first.top, second.top);
    if (wide > 1 && high > 1) found.push(`${nameOf(a)} lies on ${nameOf(b)}`);
  }));
  return found;
}

// Cards and headings of the page, the three facts, and the parts of each card.
function overlaps() {
  const cards = [...document.querySelectorAll(".card")].flatMap(card => overlapsAmong(card.children));
  const page = document.querySelectorAll("h1, #about, #facts, #again, h2, .card:not(.fact)");
  return [...overlapsAmong(page), ...overlapsAmong(document.querySelectorAll(".fact")), ...cards];
}

// Charts that are not as large as their box, or that leave their card.
function misfits() {
  return [...document.querySelectorAll(".plot")].map((plot, n) => {
    const drawn = plot.querySelector(".main-svg").getBoundingClientRect();
    const box = plot.getBoundingClientRect(), card = plot.closest(".card").getBoundingClientRect();
    const isWhole = Math.abs(drawn.height - figures[n].height) <= 1 && drawn.height >= 200;
    const fits = isWhole && Math.abs(drawn.width - box.width) <= 1 && drawn.right <= card.right + 1;
    return fits ? null : `${plot.id}: ${drawn.width} x ${drawn.height} in ${box.width}`;
  }).filter(Boolean);
}

function overflow() {
  return document.documentElement.scrollWidth - document.documentElement.clientWidth;
}

// The right edge of the widest card, from the left edge of the page's text.
function printedWidth() {
  const cards = [...document.querySelectorAll(".card, .plot")].map(e => e.getBoundingClientRect());
  const left = document.querySelector("main").getBoundingClientRect().left;
  return Math.max(...cards.map(box => box.right)) - left;
}

function seen(selector) { return [...document.querySelectorAll(selector)].filter(isSeen).length; }

// The words of the page's head that end above this line.
function wordsAbove(line) {
  const parts = [...document.querySelectorAll("header h1, header p, header strong, header em, header code")];
  return parts.filter(e => e.getBoundingClientRect().bottom <= line).map(e => e.textContent).join("\n");
}

function pointsByChart(within) {
  return [...document.querySelectorAll(`${within} .plot`)].map(
    plot => plot.querySelectorAll("path.point").length);
}
