"""The page's script: a page of work that goes on, which loads itself again as it was looked at."""

RELOADING = r"""
// What was chosen is kept when the page is loaded again.
const data = JSON.parse(document.getElementById("data").textContent);
const kept = { off: null, words: "", whole: false, sorts: {}, tabs: {}, folds: {} };
const place = `corsage ${location.pathname}`;
const again = () => {
  if (document.hidden || document.querySelector("dialog[open], input:focus, .tip:not([hidden])")) {
    setTimeout(again, 1000);
    return;
  }
  location.reload();
};
if (data.live) {
  try {
    Object.assign(kept, JSON.parse(sessionStorage.getItem(place) || "{}"));
  } catch {} // a browser that keeps nothing of files
  addEventListener("pagehide", () => {
    try {
      sessionStorage.setItem(place, JSON.stringify(kept));
    } catch {}
  });
  if (data.live.seconds) setTimeout(again, 1000 * data.live.seconds);
  const ago = document.getElementById("ago");
  const say = () => {
    const seconds = Date.now() / 1000 - data.live.written;
    const minutes = Math.floor(seconds / 60);
    ago.textContent = minutes ? `, ${minutes} min ago; corsage watch says whether it goes on` : "";
  };
  say();
  setInterval(say, 5000);
  [...document.querySelectorAll("details")].forEach(fold => {
    const name = fold.querySelector("summary")?.textContent;
    if (name in kept.folds) fold.open = kept.folds[name];
    fold.addEventListener("toggle", () => (kept.folds[name] = fold.open));
  });
}
"""
