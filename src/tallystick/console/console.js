// What a page is more with a script than without: live, with ages that go on, keys, copying, and a map that moves.
// The page is whole without. Nothing here knows what a page is about.
"use strict";

const main = document.getElementById("live");
const away = document.getElementById("away");
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// Ages: every <time> tells how long ago it is; on paper, when it was.
const paper = matchMedia("print");
function age(ms) {
  const s = Math.abs(Date.now() - ms) / 1000;
  const [size, unit] = s < 120 ? [1, "s"] : s < 7200 ? [60, "min"] : s < 172800 ? [3600, "h"] : [86400, "d"];
  const told = `${Math.round(s / size)} ${unit}`;
  return Date.now() < ms - 1000 ? `in ${told}` : `${told} ago`;  // clocks of two machines differ by less
}

function tick() {
  for (const time of document.querySelectorAll("time[data-ms]")) {
    time.title ||= time.textContent;
    time.textContent = paper.matches ? time.title : age(Number(time.dataset.ms));
  }
}
paper.addEventListener("change", tick);

// What a browser can and a page without scripts cannot.
function dress(part) {
  for (const button of part.querySelectorAll(".copy")) button.hidden = false;
  for (const svg of part.querySelectorAll(".map svg")) movable(svg);
  tick();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.(".copy");
  if (!button) return;
  await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
  button.textContent = "copied";
  setTimeout(() => { button.textContent = "copy"; }, 1500);
});

// Keys: digits lead to the pages, / to the first field.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const ways = document.querySelectorAll("body > header nav a");
  if (event.key === "/") {
    const field = document.querySelector(".filters input");
    if (field) { event.preventDefault(); field.focus(); }
  } else if (/^[1-9]$/.test(event.key)) {
    ways[Number(event.key) - 1]?.click();
  }
});

// A map is moved by dragging and by the arrow keys, and scaled by the wheel and by + and -.
function movable(svg) {
  const box = svg.viewBox.baseVal;
  const home = [box.x, box.y, box.width, box.height];
  const scale = (factor) => {
    const wide = Math.min(home[2], box.width * factor), high = wide * home[3] / home[2];
    box.x += (box.width - wide) / 2; box.y += (box.height - high) / 2; box.width = wide; box.height = high;
  };
  const move = (dx, dy) => { box.x += dx * box.width; box.y += dy * box.height; };
  let last = null;
  svg.tabIndex = 0;
  svg.addEventListener("wheel", (event) => { event.preventDefault(); scale(event.deltaY > 0 ? 1.2 : 1 / 1.2); });
  svg.addEventListener("pointerdown", (event) => { last = event; svg.setPointerCapture(event.pointerId); });
  svg.addEventListener("pointerup", () => { last = null; });
  svg.addEventListener("pointermove", (event) => {
    if (!last) return;
    move((last.clientX - event.clientX) / svg.clientWidth, (last.clientY - event.clientY) / svg.clientHeight);
    last = event;
  });
  svg.addEventListener("keydown", (event) => {
    const ways = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
    if (ways[event.key]) { event.preventDefault(); move(...ways[event.key]); }
    if (event.key === "+" || event.key === "-") scale(event.key === "-" ? 1.2 : 1 / 1.2);
  });
}

// Live: ask for this page again and again; the console answers when there is something new.
const busy = () => main.contains(document.activeElement) && document.activeElement.matches("input, select")
  || main.contains(getSelection().anchorNode) && !getSelection().isCollapsed || document.hidden;

function replace(html, version) {
  const open = [...main.querySelectorAll("details")].map((one) => one.open);
  const focused = document.activeElement?.closest?.("#live a")?.getAttribute("href");
  main.innerHTML = html;
  main.dataset.version = version;
  main.querySelectorAll("details").forEach((one, place) => { one.open = open[place] ?? one.open; });
  if (focused) [...main.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
  dress(main);
}

async function live() {
  for (;;) {
    try {
      // Past the cache: there it would hold the lock of this address, and loading the page again would wait for it.
      const headers = { "tally-console": main.dataset.version };
      const answer = await fetch(location.href, { cache: "no-store", headers });
      if (answer.status === 200) {
        const html = await answer.text(), version = answer.headers.get("tally-version");
        while (busy()) await pause(500);
        replace(html, version);
      } else if (answer.status !== 204) {
        throw new Error(answer.status === 403 ? "it was started anew: open the address that it printed" : "it failed");
      }
      away.hidden = true;
      if (answer.headers.get("tally-version") === "still") return;
    } catch (error) {
      away.textContent ||= `the console does not answer since ${new Date().toLocaleTimeString()}: ${error.message}`;
      away.hidden = false;
      await pause(2000);
      continue;
    }
    away.textContent = "";
  }
}

dress(document);
setInterval(tick, 1000);
if (main.dataset.live !== undefined) live();
